"""How the command line speaks: results on standard output, errors on standard error.

Texts that may hold square brackets (`penstock[java]`) are printed as `Text`, never as markup,
which would swallow them.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from penstock.errors import PenstockError


def print_error(error: PenstockError, console: Console | None = None) -> None:
    """Show one of our errors as a message: what, why, what to do, and the code to search for."""
    console = console or Console(stderr=True)
    text = Text()
    text.append("error: ", style="bold red")
    text.append(f"{error.subject}: {error.fact}.", style="bold")
    text.append(f"\n{error.remedy}")
    text.append(f"\n[PENSTOCK_{error.code}]", style="dim")
    # Not wrapped: a command in the remedy has to survive copy and paste.
    console.print(text, soft_wrap=True)
