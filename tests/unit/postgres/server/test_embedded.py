"""The embedded server: it runs, survives what tests do to it, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import penstock.testing
from penstock.errors import ConnectError, MissingExtraError
from penstock.testing import PostgresServer, postgres_server
from penstock.testing import postgres as embedded


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_it_is_set_up_for_logical_decoding(postgres: PostgresServer) -> None:
    assert postgres.execute("SHOW wal_level") == [("logical",)]
    assert int(postgres.execute("SHOW max_prepared_transactions")[0][0]) > 0
    assert postgres.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_it_listens_on_the_loopback_address_only(postgres: PostgresServer) -> None:
    assert postgres.execute("SHOW listen_addresses") == [("127.0.0.1",)]
    assert postgres.execute("SHOW unix_socket_directories") == [("",)]


def test_a_password_is_needed(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.url(user="postgres", password="wrong"))  # noqa: S106 - wrong on purpose


def test_names_in_its_url_may_have_any_letters(postgres: PostgresServer) -> None:
    name = postgres.create_database('odd "name"/?#%@:')
    try:
        assert postgres.execute("SELECT current_database()", name) == [(name,)]
    finally:
        postgres.drop_database(name)


def test_its_programs_run(postgres: PostgresServer) -> None:
    done = subprocess.run(
        [postgres.bin("psql"), postgres.url(), "-Atc", "SELECT 40 + 2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42\n"
    assert postgres.bin("pgbench").is_file()


def test_data_survive_a_restart_and_a_kill_and_the_port_stays() -> None:
    with postgres_server({"work_mem": "7MB"}) as server:
        port, pid = server.port, server.pid
        server.execute("CREATE TABLE t (a int)")
        server.restart({"log_min_messages": "info"})
        server.execute("INSERT INTO t VALUES (1)")
        server.kill()
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            server.execute("SELECT 1")
        server.start()

        assert server.execute("SELECT a FROM t") == [(1,)]
        assert server.execute("SHOW work_mem") == [("7MB",)]
        assert (server.port, server.pid == pid) == (port, False)
        assert "ready to accept connections" in server.log_tail()
        directory = server.directory
        assert directory.exists()
    assert not directory.exists()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the account can enter which root lends the server; tmp_path is closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_directory_that_is_given_is_kept_and_gone_on_from(directory: Path) -> None:
    data = directory / "kept"
    with postgres_server(data=data) as server:
        server.execute("CREATE TABLE t AS SELECT 5 a")
    with postgres_server(data=data) as server:
        assert server.execute("SELECT a FROM t") == [(5,)]
    assert data.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another account")
def test_root_is_told_which_directory_is_closed(directory: Path) -> None:
    directory.chmod(0o700)
    with pytest.raises(ConnectError, match=f"may not enter {directory}"):
        postgres_server(data=directory / "data").__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another account")
def test_root_can_run_it_from_a_private_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = embedded._find_install(18).parent
    for path in (package, package.with_name(f"{package.name}.libs")):
        (directory / path.name).symlink_to(path)
    directory.chmod(0o700)
    install = directory / package.name / embedded._find_install(18).name
    monkeypatch.setattr(embedded, "_find_install", lambda _: install)
    with postgres_server() as server:
        assert server.execute("SELECT 1") == [(1,)]
        assert server.bin("psql").is_relative_to(server.directory)


def test_a_setting_that_is_wrong_is_told() -> None:
    with (
        pytest.raises(ConnectError, match="work_mem") as caught,
        postgres_server({"work_mem": "a lot"}),
    ):
        pytest.fail("it started")
    assert caught.value.code == "EMBEDDED_POSTGRES"


def test_a_failing_test_leaves_nothing_behind() -> None:
    with contextlib.suppress(RuntimeError), postgres_server() as server:
        pid, directory = server.pid, server.directory
        assert pid is not None
        assert is_running(pid)
        raise RuntimeError
    assert not is_running(pid)
    assert not directory.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_test_leaves_nothing_behind(number: signal.Signals) -> None:
    program = (
        "from penstock.testing import postgres_server\n"
        "with postgres_server() as server:\n"
        "    print(server.pid, server.directory, flush=True)\n"
        "    input()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        pid, directory = child.stdout.readline().split()
        assert is_running(int(pid))
        child.send_signal(number)
        child.wait()
        wait_until(lambda: not is_running(int(pid)), "the server went on")
        wait_until(lambda: not Path(directory).exists(), "its directory stayed")


def test_two_servers_are_two(postgres: PostgresServer, postgres_16: PostgresServer) -> None:
    assert postgres.port != postgres_16.port
    assert postgres_16.execute("SHOW server_version")[0][0].startswith("16.")
    assert postgres.execute("SHOW server_version")[0][0].startswith("18.")


def test_a_missing_wheel_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[postgres-server\]'"):
        postgres_server().__enter__()


def test_a_version_that_the_wheel_lacks_is_told() -> None:
    with pytest.raises(ValueError, match="16 and 18"):
        postgres_server(version=9).__enter__()


def test_names_of_the_testing_package_are_all_there() -> None:
    assert all(hasattr(penstock.testing, name) for name in penstock.testing.__all__)
    with pytest.raises(AttributeError):
        _ = penstock.testing.nonsense


def test_postgres_needs_no_pubsub_client() -> None:
    code = "import sys, penstock.testing.postgres; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
