"""The `penstock` command: gathers the commands, and turns our errors into messages.

Runs on a person's machine or in a container; imports no SDK, so that `--help` is quick and works
without any extra.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console

import penstock
from penstock.cli import demo, emulator, java, options
from penstock.cli.console import print_error
from penstock.errors import PenstockError

# What a shell knows as "used wrongly, or cannot run here"; click uses it for the same.
EXIT_ERROR = 2

app = typer.Typer(
    name="penstock",
    help="Streaming pipelines for PySpark.",
    epilog=(
        "[bold]Start here:[/bold]\n\n"
        "penstock demo\n\n"
        "penstock emulator pubsub --port 8085\n\n"
        "penstock options pubsub"
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    # Our errors become messages in `main`; a bug keeps its plain stack trace, for the report.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", help=demo.HELP, epilog=demo.EPILOG)(demo.demo)
app.add_typer(emulator.app, name="emulator")
app.command("options", help=options.HELP, epilog=options.EPILOG, no_args_is_help=True)(
    options.options
)
app.command("java-home", help=java.HELP, epilog=java.EPILOG)(java.java_home)


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's callback
    if not value:
        return
    try:
        spark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        spark = "not installed"
    Console(highlight=False).print(
        f"penstock {penstock.__version__} (Python {platform.python_version()}, PySpark {spark})",
        soft_wrap=True,
    )
    raise typer.Exit


@app.callback()
def penstock_command(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the versions of Penstock, Python and PySpark.",
        ),
    ] = False,
) -> None:
    """Streaming pipelines for PySpark."""


def main() -> None:
    """Run the command line; the entry point of the installed `penstock`."""
    try:
        app(prog_name="penstock")
    except PenstockError as error:
        print_error(error)
        sys.exit(EXIT_ERROR)


if __name__ == "__main__":
    main()
