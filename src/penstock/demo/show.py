"""What the viewer of the demo sees: numbered steps, code, tables and the verdict."""

from __future__ import annotations

import ast
import inspect
import textwrap
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from penstock import __version__


class Show:
    """Tells the story on a console, and keeps the claims that it makes for the verdict."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.monotonic()
        self._step = 0
        self._checks: list[tuple[str, bool]] = []

    def title(self, text: str) -> None:
        """Open the show."""
        head = Text.assemble(
            ("Penstock", "bold"), f" {__version__}: streaming pipelines for PySpark\n", text
        )
        self.console.print(Panel(head, border_style="cyan"))

    def step(self, title: str, text: str = "") -> None:
        """Begin the next step."""
        self._step += 1
        self.console.print()
        heading = Text(f"{self._step}. {title}", style="bold cyan")
        self.console.rule(heading, align="left", style="dim")
        if text:
            self.console.print(Text(text))

    def line(self, text: str) -> None:
        """Say what happened."""
        self.console.print(Text(text))

    def code(self, function: Callable[..., Any]) -> None:
        """Show the body of a function that is about to run."""
        self.console.print(
            Syntax(body(function), "python", theme="ansi_dark", background_color="default")
        )

    def table(self, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
        """Show a small table; numbers get their thousands marked and stand to the right."""
        table = Table(header_style="bold")
        for name in columns:
            table.add_column(name)
        for row in rows:
            cells = list(row)
            for column, cell in zip(table.columns, cells, strict=True):
                if not isinstance(cell, str):
                    column.justify = "right"
            table.add_row(*(cell if isinstance(cell, str) else f"{cell:,}" for cell in cells))
        self.console.print(table)

    def check(self, claim: str, *, holds: bool) -> None:
        """Record a claim for the verdict."""
        self._checks.append((claim, holds))

    def verdict(self) -> bool:
        """Show which claims hold; true if all do."""
        is_sound = all(holds for _, holds in self._checks)
        text = Text()
        for claim, holds in self._checks:
            text.append("  ok  " if holds else " FAIL ", "bold green" if holds else "bold red")
            text.append(f"{claim}\n")
        text.append(f"\nAll of it took {time.monotonic() - self._started:.0f} s.", "dim")
        title = "The numbers add up" if is_sound else "The numbers do NOT add up"
        style = "green" if is_sound else "red"
        self.console.print()
        self.console.print(Panel(text, title=title, border_style=style, title_align="left"))
        return is_sound


def body(function: Callable[..., Any]) -> str:
    """Cut the statements out of a function: without its head, docstring and last statement."""
    source = textwrap.dedent(inspect.getsource(function))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)  # noqa: S101 - it was given a function
    first, last = definition.body[1], definition.body[-2]
    lines = source.splitlines()[first.lineno - 1 : last.end_lineno]
    return textwrap.indent(textwrap.dedent("\n".join(lines)), "  ")
