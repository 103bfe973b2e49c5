"""`penstock emulator`: runs an embedded service in the foreground until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.text import Text

from penstock.errors import missing_extra

# The port that Google's own emulator takes, so that existing scripts fit.
DEFAULT_PORT = 8085
DEFAULT_SNOWFLAKE_PORT = 8086

# Addresses that mean "every interface" to a server, and nothing to a client.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared, not bound
_LOOPBACK = ("127.", "localhost", "[::1]")

app = typer.Typer(
    help="Run an embedded service on this machine.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


class Serve(Protocol):
    """A service's main function: blocks until SIGINT or SIGTERM."""

    def __call__(self, host: str, port: int, *, on_ready: Callable[[str], None]) -> None:
        """Serve on host and port; tell the address when ready."""
        ...


def _pubsub_server() -> Serve:
    """Load the server, which needs an extra."""
    # A port that is taken becomes our error; gRPC would write its own account of it, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from penstock.emulator.pubsub.server import serve
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] == "penstock":
            raise
        raise missing_extra("penstock emulator pubsub", "emulator", exc.name) from exc
    return serve


def _announce(console: Console, address: str) -> None:
    host, _, port = address.rpartition(":")
    reachable = f"{_WILDCARDS.get(host, host)}:{port}"
    text = Text.assemble(
        ("Pub/Sub emulator", "bold"),
        " listens on ",
        (address, "bold green"),
        "\nPoint clients and Spark to it:  ",
        (f"export PUBSUB_EMULATOR_HOST={reachable}", "cyan"),
        "\nStop it with Ctrl-C; its topics and messages are in memory only and end with it.",
    )
    if not host.startswith(_LOOPBACK):
        text.append(
            "\nIt has no authentication: whoever reaches this address can use it.", "yellow"
        )
    # Not wrapped: the export line is there to be copied.
    console.print(text, soft_wrap=True)


@app.command(
    "pubsub",
    help=(
        "Run Google Cloud Pub/Sub's gRPC API on this machine.\n\n"
        "Topics, subscriptions, ordering, filters, dead-letter topics, exactly-once delivery, "
        "snapshots and schemas, for the official clients and for Spark. Nothing leaves the machine."
    ),
    epilog=(
        "[bold]Examples:[/bold]\n\n"
        "penstock emulator pubsub\n\n"
        "penstock emulator pubsub --port 0  [dim]# any free port[/dim]\n\n"
        "PUBSUB_EMULATOR_HOST=127.0.0.1:8085 python my_job.py"
    ),
)
def pubsub(
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 means every interface, without authentication."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = DEFAULT_PORT,
) -> None:
    """Serve until SIGINT or SIGTERM."""
    serve = _pubsub_server()
    console = Console(highlight=False)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"  # an IPv6 address
    serve(host, port, on_ready=lambda address: _announce(console, address))
    console.print("Pub/Sub emulator stopped.")


def _announce_snowflake(console: Console, host: str, port: int, files: Path, kept: str) -> None:
    reachable = _WILDCARDS.get(host, host)
    text = Text.assemble(
        ("Snowflake emulator", "bold"),
        " listens on ",
        (f"https://{host}:{port}", "bold green"),
        "\nLet clients and Spark trust its certificate:  ",
        (
            f"export SSL_CERT_FILE={files / 'ca.pem'} REQUESTS_CA_BUNDLE={files / 'ca.pem'}",
            "cyan",
        ),
        "\nConnect with  ",
        (f"host={reachable} port={port} account=PENSTOCK user=PENSTOCK database=PENSTOCK", "cyan"),
        "  and the private key  ",
        (str(files / "user_key.p8"), "cyan"),
        f"\nStop it with Ctrl-C; its tables {kept}.",
    )
    if not host.startswith(_LOOPBACK):
        text.append(
            "\nIts control interface has no authentication: whoever reaches this address can use "
            "it.",
            "yellow",
        )
    console.print(text, soft_wrap=True)


@app.command(
    "snowflake",
    help=(
        "Run a Snowflake on this machine: SQL and Snowpipe Streaming.\n\n"
        "For the official connector, the official Snowpipe Streaming SDK and Spark: tables, MERGE, "
        "channels, tasks and streams on one DuckDB, with TLS and key pairs. Nothing leaves the "
        "machine."
    ),
    epilog=(
        "[bold]Examples:[/bold]\n\n"
        "penstock emulator snowflake\n\n"
        "penstock emulator snowflake --port 0  [dim]# any free port[/dim]\n\n"
        "penstock emulator snowflake --directory ./snowflake  [dim]# tables outlive it[/dim]"
    ),
)
def snowflake(
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 means every interface. localhost is what the "
            "certificate is for, beside this."
        ),
    ] = "localhost",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = DEFAULT_SNOWFLAKE_PORT,
    directory: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Where tables, certificate and key shall be kept; without it all of it ends with "
            "the emulator.",
        ),
    ] = None,
) -> None:
    """Serve until SIGINT or SIGTERM."""
    try:
        from penstock.emulator.snowflake.certificates import Identity
        from penstock.emulator.snowflake.server import serve
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] == "penstock":
            raise
        raise missing_extra("penstock emulator snowflake", "snowflake-emulator", exc.name) from exc
    console = Console(highlight=False)
    with contextlib.ExitStack() as stack:
        if directory is None:
            own = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-snowflake-"))
            files, tables, kept = Path(own), None, "are in memory only and end with it"
        else:
            files = directory.absolute()
            tables, kept = files / "databases", f"are kept in {files}"
        serve(
            host,
            port,
            Identity(files),
            tables,
            on_ready=lambda bound, number: _announce_snowflake(console, bound, number, files, kept),
        )
    console.print("Snowflake emulator stopped.")
