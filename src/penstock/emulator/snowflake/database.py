"""The one DuckDB: databases as attached files or in memory, and who may change a table when.

Runs in the emulator. DuckDB lets one transaction write to one attached database, so what has to
change together with rows (channels, refused rows) lives in the table's own database, in the schema
that fakesnow hides there; users and tasks live in the global one.
"""

# ruff: noqa: S608, SLF001 - names are ours or checked; fakesnow is filled from inside

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
from fakesnow import info_schema, macros
from fakesnow.conn import FakeSnowflakeConnection
from fakesnow.instance import GLOBAL_DATABASE_NAME, FakeSnow
from fakesnow.transforms import show

from penstock.emulator.snowflake.errors import sql_error

# fakesnow puts a database's name into statements as it is.
_DATABASE_NAME = re.compile(r"[A-Z_][A-Z0-9_$]*")
_LONGEST_LOCK_SECONDS = 300.0
HIDDEN_SCHEMA = "_fs_information_schema"

_GLOBAL = """
CREATE SCHEMA IF NOT EXISTS _fs_global._penstock;
CREATE TABLE IF NOT EXISTS _fs_global._penstock.users (
    name VARCHAR PRIMARY KEY, rsa_public_key VARCHAR, rsa_public_key_2 VARCHAR
);
CREATE TABLE IF NOT EXISTS _fs_global._penstock.tasks (
    database VARCHAR, schema VARCHAR, name VARCHAR, warehouse VARCHAR, seconds DOUBLE,
    schedule VARCHAR, condition VARCHAR, body VARCHAR, state VARCHAR, created TIMESTAMPTZ,
    comment VARCHAR,
    PRIMARY KEY (database, schema, name)
);
CREATE TABLE IF NOT EXISTS _fs_global._penstock.pipes (
    database VARCHAR, schema VARCHAR, name VARCHAR, target VARCHAR[], definition VARCHAR,
    PRIMARY KEY (database, schema, name)
);
"""

_PER_DATABASE = """
CREATE TABLE IF NOT EXISTS {db}._fs_information_schema._penstock_channels (
    schema VARCHAR, pipe VARCHAR, channel VARCHAR, sequencer BIGINT, position BIGINT,
    last_request VARCHAR, committed VARCHAR, created_ms BIGINT, rows_parsed BIGINT,
    rows_inserted BIGINT, rows_error_count BIGINT, last_error_message VARCHAR,
    last_error_token VARCHAR, last_error_ms BIGINT
);
CREATE TABLE IF NOT EXISTS {db}._fs_information_schema._penstock_columns (
    schema VARCHAR, "table" VARCHAR, "column" VARCHAR, type VARCHAR
);
CREATE TABLE IF NOT EXISTS {db}._fs_information_schema._penstock_tables (
    schema VARCHAR, "table" VARCHAR, error_logging BOOLEAN
);
CREATE TABLE IF NOT EXISTS {db}._fs_information_schema._penstock_streams (
    schema VARCHAR, name VARCHAR, table_schema VARCHAR, "table" VARCHAR, consumed BIGINT
);
CREATE TABLE IF NOT EXISTS {db}._fs_information_schema._penstock_inserts (
    schema VARCHAR, "table" VARCHAR, rows BIGINT
);
CREATE TABLE IF NOT EXISTS {db}._fs_information_schema._penstock_errors (
    schema VARCHAR, "table" VARCHAR, "timestamp" TIMESTAMPTZ, pipe VARCHAR, channel VARCHAR,
    offset_token VARCHAR, message VARCHAR, payload JSON
);
"""


class Connection(FakeSnowflakeConnection):
    """fakesnow's connection, which also knows of transactions that a statement began."""

    is_explicit = False

    @property
    def is_in_transaction(self) -> bool:
        """Tell whether a transaction is open."""
        return self.is_explicit or self._in_transaction


class ChangeLock:
    """Lets one transaction at a time update and delete, as Snowflake's locks do with a table.

    DuckDB would let the second one fail instead.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: Connection | None = None

    def acquire(self, owner: Connection, seconds: float = _LONGEST_LOCK_SECONDS) -> bool:
        """Wait for the lock; it stays with its owner until it is released."""
        with self._changed:
            is_free = self._changed.wait_for(lambda: self._owner in (None, owner), seconds)
            if is_free:
                self._owner = owner
            return is_free

    def release(self, owner: Connection) -> None:
        """Give the lock back, if it is this owner's."""
        with self._changed:
            if self._owner is owner:
                self._owner = None
                self._changed.notify_all()


def quoted(name: str) -> str:
    """Quote an identifier, for DuckDB as for Snowflake."""
    return '"' + name.replace('"', '""') + '"'


class Database(FakeSnow):
    """fakesnow's instance on a DuckDB that may outlive the process."""

    def __init__(self, directory: Path | None = None) -> None:
        # Not fakesnow's constructor: its global database is always in memory.
        self.create_database_on_connect = False
        self.create_schema_on_connect = False
        self.nop_regexes = None
        self.db_path = directory
        self.results_cache = {}
        self.duck_conn = duckdb.connect(
            database=":memory:", config={"lambda_syntax": "ENABLE_SINGLE_ARROW"}
        )
        # Held by whoever changes a table's form, and by ingest while it inserts: DuckDB would let
        # one of the two fail where Snowflake lets it wait.
        self.form_lock = threading.RLock()
        self.change_lock = ChangeLock()
        # Tables with streams; only their inserts are counted.
        self.streamed: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._attach(GLOBAL_DATABASE_NAME)
        self.duck_conn.execute(info_schema.fs_global_creation_sql())
        self.duck_conn.execute(show.fs_global_creation_sql())
        self.duck_conn.execute(_GLOBAL)
        self.duck_conn.execute("SET GLOBAL TimeZone = 'UTC'")
        if directory is not None:
            for file in sorted(directory.glob("*.db")):
                if file.stem != GLOBAL_DATABASE_NAME:
                    self._open(file.stem)

    def _attach(self, name: str) -> None:
        file = ":memory:" if self.db_path is None else str(Path(self.db_path) / f"{name}.db")
        text = file.replace("'", "''")
        self.duck_conn.execute(f"ATTACH IF NOT EXISTS '{text}' AS {name}")

    def _open(self, name: str) -> None:
        self._attach(name)
        self.duck_conn.execute(info_schema.per_db_creation_sql(name))
        self.duck_conn.execute(macros.creation_sql(name))
        self.duck_conn.execute(_PER_DATABASE.format(db=name))
        self.duck_conn.execute(f"CREATE SCHEMA IF NOT EXISTS {name}.PUBLIC")
        for schema, table in self.duck_conn.execute(
            f'SELECT table_schema, "table" FROM {name}.{HIDDEN_SCHEMA}._penstock_streams'
        ).fetchall():
            self.streamed.add((name, schema, table))

    def create(self, name: str) -> None:
        """Create a database with its schema PUBLIC, as Snowflake does."""
        if not _DATABASE_NAME.fullmatch(name):
            raise sql_error(
                f"the emulator takes names of databases of letters, digits, _ and $ only: {name!r}"
            )
        with self._lock:
            self._open(name)

    def drop(self, name: str) -> None:
        """Remove a database, and its file if it has one."""
        with self._lock:
            self.duck_conn.execute(f"DETACH {quoted(name)}")
            if self.db_path is not None:
                for suffix in (".db", ".db.wal"):
                    (Path(self.db_path) / f"{name}{suffix}").unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Name the databases."""
        with self._lock:
            found = self.duck_conn.execute(
                "SELECT database_name FROM duckdb_databases() WHERE NOT internal"
            ).fetchall()
        return [name for (name,) in found if name not in ("memory", GLOBAL_DATABASE_NAME)]

    def connect(  # type: ignore[override]  # fakesnow's takes a database and schema
        self, *, autocommit: bool = True
    ) -> Connection:
        """Open a session's connection, without a database and schema."""
        return Connection(
            self.cursor(),
            self.results_cache,
            create_database=False,
            create_schema=False,
            db_path=self.db_path,
            autocommit=autocommit,
        )

    def leave(self, connection: Connection) -> None:
        """Close a session's connection; what it has not committed is undone."""
        with contextlib.suppress(duckdb.Error):
            connection._duck_conn.rollback()
        connection.close()
        self.change_lock.release(connection)

    def close(self) -> None:
        """Write everything to the files, and let them go."""
        self.duck_conn.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Give a connection of its own, with its own transactions."""
        with self._lock:
            return self.duck_conn.cursor()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Run a block in one transaction."""
        with contextlib.closing(self.cursor()) as connection:
            connection.begin()
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run one statement on the global database."""
        self.rows(statement, parameters)

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement on the global database; returns its rows."""
        with contextlib.closing(self.cursor()) as connection:
            connection.execute(f"USE {GLOBAL_DATABASE_NAME}")
            return connection.execute(statement, list(parameters)).fetchall()
