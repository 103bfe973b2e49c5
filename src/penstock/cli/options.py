"""`penstock options`: prints a format's options as they are declared in the code."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.options_table import Format, markdown_page, terminal_tables

HELP = "List all options of a format, with types, defaults and examples."
EPILOG = (
    "[bold]Examples:[/bold]\n\n"
    "penstock options pubsub\n\n"
    "penstock options pubsub --markdown > pubsub.md"
)


def options(
    format_name: Annotated[
        Format, typer.Argument(metavar="FORMAT", help="The format, for example pubsub.")
    ],
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page of the reference documentation.")
    ] = False,
) -> None:
    """Print the tables, or the page."""
    if markdown:
        typer.echo(markdown_page(format_name), nl=False)
        return
    console = Console(highlight=False)
    for table in terminal_tables(format_name):
        console.print(table)
