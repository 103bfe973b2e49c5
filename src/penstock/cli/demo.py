"""`penstock demo`: runs the demo, and says what is missing where it cannot."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.errors import missing_extra

HELP = (
    "Watch events go through Spark into Pub/Sub and back, and changes out of PostgreSQL, on this "
    "machine alone.\n\n"
    "Starts the embedded Pub/Sub emulator, a PostgreSQL and a local Spark, streams sample events "
    "into a topic, reads them back, follows a table, checks the numbers, and removes everything it "
    "made. Needs no account."
)
EPILOG = "[bold]Examples:[/bold]\n\npenstock demo\n\npenstock demo --messages 200000"

# The shell's own number for "ended by Ctrl-C".
_EXIT_INTERRUPTED = 130


def demo(
    messages: Annotated[
        int,
        typer.Option(
            "--messages", "-n", min=10, max=2_000_000, help="How many events to send through."
        ),
    ] = 20_000,
) -> None:
    """Run the demo; exit code 1 if its numbers do not add up."""
    try:
        from penstock.demo import run_demo
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] == "penstock":
            raise
        raise missing_extra("penstock demo", "all", exc.name) from exc
    try:
        is_sound = run_demo(messages)
    except KeyboardInterrupt:
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    if not is_sound:
        raise typer.Exit(1)
