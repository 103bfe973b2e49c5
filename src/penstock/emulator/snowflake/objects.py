"""Streams, pipes, users and error logging: statements that fakesnow does not know.

Runs in the emulator. A stream keeps no rows: it knows whether rows were inserted into its table
since it was made or last consumed.
"""

# ruff: noqa: S608, SLF001 - names are quoted; fakesnow's connection is ours

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.emulator.snowflake import tables
from penstock.emulator.snowflake.cursor import Cursor, text
from penstock.emulator.snowflake.database import HIDDEN_SCHEMA, Database, quoted
from penstock.emulator.snowflake.errors import sql_error
from penstock.emulator.snowflake.names import NAME, ObjectName, resolve, unquoted
from penstock.emulator.snowflake.users import SLOTS, PublicKeyError, Users

_FLAGS = re.IGNORECASE | re.DOTALL
_REPLACE = r"CREATE\s+(?P<replace>OR\s+REPLACE\s+)?"
_EXISTS = r"(?P<exists>IF\s+(?:NOT\s+)?EXISTS\s+)?"
_OBJECT = rf"{_EXISTS}(?P<name>{NAME})"
_USER = re.compile(rf"(?P<verb>CREATE|ALTER|DROP)\s+USER\s+{_OBJECT}(?P<rest>.*)", _FLAGS)
_KEY = re.compile(r"(RSA_PUBLIC_KEY(?:_2)?)\s*=\s*'([^']*)'", re.IGNORECASE)
_UNSET = re.compile(r"\s*UNSET\s+(.*)", _FLAGS)
_CREATE_STREAM = re.compile(
    rf"{_REPLACE}STREAM\s+{_OBJECT}\s+ON\s+TABLE\s+(?P<table>{NAME})(?P<rest>.*)", _FLAGS
)
_DROP_STREAM = re.compile(rf"DROP\s+STREAM\s+{_OBJECT}", _FLAGS)
_CREATE_PIPE = re.compile(
    rf"{_REPLACE}PIPE\s+{_OBJECT}\s+AS\s+COPY\s+INTO\s+(?P<table>{NAME})\s+FROM\s+TABLE\s*\(\s*"
    r"DATA_SOURCE\s*\(\s*TYPE\s*=>\s*'STREAMING'\s*\)\s*\)\s*"
    r"MATCH_BY_COLUMN_NAME\s*=\s*\w+\s*",
    _FLAGS,
)
_ANY_PIPE = re.compile(r"CREATE\s+(OR\s+REPLACE\s+)?PIPE\b.*", _FLAGS)
_DROP_PIPE = re.compile(rf"DROP\s+PIPE\s+{_OBJECT}", _FLAGS)
_ERROR_LOGGING = re.compile(
    rf"ALTER\s+TABLE\s+{_OBJECT}\s+(?P<verb>SET|UNSET)\s+ERROR_LOGGING(?:\s*=\s*(?P<on>\w+))?",
    _FLAGS,
)
_DONE = "Statement executed successfully."


class Objects:
    """Runs the statements about these objects."""

    def __init__(self, database: Database, users: Users) -> None:
        self._database = database
        self._users = users
        self._patterns: list[tuple[re.Pattern[str], Callable[[Cursor, re.Match[str]], None]]] = [
            (_USER, self._user),
            (_CREATE_STREAM, self._create_stream),
            (_DROP_STREAM, self._drop_stream),
            (_CREATE_PIPE, self._create_pipe),
            (_ANY_PIPE, self._refuse_pipe),
            (_DROP_PIPE, self._drop_pipe),
            (_ERROR_LOGGING, self._error_logging),
        ]

    def run(self, cursor: Cursor, statement: str) -> bool:
        """Run a statement if it is one of these; tells whether it was."""
        for pattern, handler in self._patterns:
            if match := pattern.fullmatch(statement):
                cursor.commit_open()
                handler(cursor, match)
                return True
        return False

    def _user(self, cursor: Cursor, match: re.Match[str]) -> None:
        verb = match["verb"].upper()
        name = unquoted(match["name"])
        if verb == "CREATE":
            if self._users.exists(name) and not match["exists"]:
                raise sql_error(f"Object '{name}' already exists.", 2002, "42710")
            self._users.create(name)
        elif not self._users.exists(name):
            if match["exists"]:
                return cursor.say(_DONE)
            raise sql_error(f"User '{name}' does not exist or not authorized.", 2003, "02000")
        if verb == "DROP":
            self._users.drop(name)
            return cursor.say(f"{name} successfully dropped.")
        self._set_keys(name, match["rest"])
        return cursor.say(_DONE)

    def _set_keys(self, user: str, settings: str) -> None:
        for slot, key in _KEY.findall(settings):
            try:
                self._users.set_key(user, slot.upper(), key)
            except PublicKeyError as exc:
                raise sql_error(f"New public key rejected: {exc}", 390408, "22023") from None
        if unset := _UNSET.fullmatch(settings):
            for slot in re.split(r"[\s,]+", unset[1].strip()):
                if slot.upper() not in SLOTS:
                    raise sql_error(f"invalid property '{slot}' for 'USER'")
                self._users.set_key(user, slot.upper(), None)

    def _create_stream(self, cursor: Cursor, match: re.Match[str]) -> None:
        database, schema, name = resolve(match["name"], cursor._conn)
        table = self._table(cursor, match["table"])
        options = dict(re.findall(r"(\w+)\s*=\s*(\w+)", match["rest"].upper()))
        if options.pop("APPEND_ONLY", "") != "TRUE" or set(options) - {"SHOW_INITIAL_ROWS"}:
            raise sql_error("the emulator has streams with APPEND_ONLY = TRUE only", 2, "0A000")
        has_initial = options.get("SHOW_INITIAL_ROWS") == "TRUE"
        if table.database != database:
            raise sql_error("the emulator has streams in the database of their table only", 2)
        streams = table.hidden("streams")
        where = "WHERE schema = ? AND name = ?"
        known = cursor._duck_conn.execute(f"SELECT 1 FROM {streams} {where}", [schema, name])
        if known.fetchone():
            if match["exists"]:
                return cursor.say(f"{name} already exists, statement succeeded.")
            if not match["replace"]:
                raise sql_error(f"Object '{name}' already exists.", 2002, "42710")
            cursor._duck_conn.execute(f"DELETE FROM {streams} {where}", [schema, name])
        inserted = _inserted(table.database, table.schema, table.name)
        # Rows that are there count as if they came now.
        initial = f" - (SELECT count(*) FROM {table.sql()})" if has_initial else ""
        self._database.streamed.add((table.database, table.schema, table.name))
        cursor._duck_conn.execute(
            f"INSERT INTO {streams} SELECT ?, ?, ?, ?, {inserted}{initial}",
            [schema, name, table.schema, table.name],
        )
        return cursor.say(f"Stream {name} successfully created.")

    def _drop_stream(self, cursor: Cursor, match: re.Match[str]) -> None:
        database, schema, name = resolve(match["name"], cursor._conn)
        if self.stream(cursor, (database, schema, name)) is None and not match["exists"]:
            raise _missing("Stream", name)
        cursor._duck_conn.execute(
            f"DELETE FROM {_streams(database)} WHERE schema = ? AND name = ?", [schema, name]
        )
        cursor.say(f"{name} successfully dropped.")

    def stream(self, cursor: Cursor, name: ObjectName) -> tuple[str, str, int] | None:
        """Find a stream; returns the schema and name of its table, and what was consumed."""
        if name[0] not in self._database.names():
            return None
        row = cursor._duck_conn.execute(
            f'SELECT table_schema, "table", consumed FROM {_streams(name[0])} '
            "WHERE schema = ? AND name = ?",
            list(name[1:]),
        ).fetchone()
        return (str(row[0]), str(row[1]), int(row[2])) if row else None

    def stream_has_data(self, cursor: Cursor, name: str) -> bool:
        """Tell whether rows were inserted since the stream was made or last consumed."""
        where = resolve(name, cursor._conn)
        found = self.stream(cursor, where)
        if found is None:
            raise _missing("Stream", name)
        row = cursor._duck_conn.execute(f"SELECT {_inserted(where[0], *found[:2])}").fetchone()
        return bool(row and row[0] > found[2])

    def consume(self, cursor: Cursor, name: ObjectName) -> None:
        """Move a stream's offset to now, within the statement's transaction."""
        found = self.stream(cursor, name)
        if found is not None:
            cursor._duck_conn.execute(
                f"UPDATE {_streams(name[0])} SET consumed = {_inserted(name[0], *found[:2])} "
                "WHERE schema = ? AND name = ?",
                list(name[1:]),
            )

    def _create_pipe(self, cursor: Cursor, match: re.Match[str]) -> None:
        where = resolve(match["name"], cursor._conn)
        table = self._table(cursor, match["table"])
        known = self._database.rows(
            "SELECT 1 FROM _penstock.pipes WHERE database = ? AND schema = ? AND name = ?", where
        )
        if known and match["exists"]:
            return cursor.say(f"{where[2]} already exists, statement succeeded.")
        if known and not match["replace"]:
            raise sql_error(f"Object '{where[2]}' already exists.", 2002, "42710")
        self._database.run(
            "INSERT OR REPLACE INTO _penstock.pipes VALUES (?, ?, ?, ?, ?)",
            [*where, [table.database, table.schema, table.name], match[0]],
        )
        return cursor.say(f"Pipe {where[2]} successfully created.")

    def _refuse_pipe(self, cursor: Cursor, match: re.Match[str]) -> None:  # noqa: ARG002
        raise sql_error(
            "the emulator has pipes of this form only: CREATE PIPE p AS COPY INTO t FROM "
            "TABLE(DATA_SOURCE(TYPE => 'STREAMING')) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
            2,
            "0A000",
        )

    def _drop_pipe(self, cursor: Cursor, match: re.Match[str]) -> None:
        where = resolve(match["name"], cursor._conn)
        dropped = self._database.rows(
            "DELETE FROM _penstock.pipes WHERE database = ? AND schema = ? AND name = ? "
            "RETURNING name",
            where,
        )
        if not dropped and not match["exists"]:
            raise _missing("Pipe", where[2])
        cursor.say(f"{where[2]} successfully dropped.")

    def _error_logging(self, cursor: Cursor, match: re.Match[str]) -> None:
        is_on = match["verb"].upper() == "SET" and str(match["on"]).upper() == "TRUE"
        tables.set_error_logging(cursor._duck_conn, self._table(cursor, match["name"]), is_on=is_on)
        cursor.say(_DONE)

    def _table(self, cursor: Cursor, name: str) -> tables.TableName:
        where = resolve(name, cursor._conn)
        table = tables.find_table(cursor._duck_conn, *where)
        if table is None:
            raise _missing("Table", name)
        return table

    def error_table(self, cursor: Cursor, name: str) -> str:
        """Give the query that ERROR_TABLE(name) stands for."""
        table = self._table(cursor, name)
        if not tables.has_error_logging(cursor._duck_conn, table):
            raise sql_error(f"Error logging is not enabled on table {table.name}.", 2, "0A000")
        return (
            'SELECT "timestamp" AS TIMESTAMP, NULL::VARCHAR AS QUERY_ID, 100038 AS ERROR_CODE, '
            "json_object('service', 'snowpipe_streaming', 'error_message', message, "
            "'pipe_name', pipe, 'channel_name', channel, 'offset_token_upper_bound', "
            "offset_token) AS ERROR_METADATA, payload AS ERROR_DATA "
            f"FROM {table.hidden('errors')} WHERE schema = {text(table.schema)} "
            f'AND "table" = {text(table.name)}'
        )


def _streams(database: str) -> str:
    return f"{quoted(database)}.{HIDDEN_SCHEMA}._penstock_streams"


def _inserted(database: str, schema: str, table: str) -> str:
    """Give the expression that counts the rows ever inserted into a table with streams."""
    return (
        f"(SELECT coalesce(sum(rows), 0) FROM {quoted(database)}.{HIDDEN_SCHEMA}._penstock_inserts "
        f'WHERE schema = {text(schema)} AND "table" = {text(table)})'
    )


def _missing(kind: str, name: str) -> Exception:
    return sql_error(f"{kind} '{name}' does not exist or not authorized.", 2003, "02000")
