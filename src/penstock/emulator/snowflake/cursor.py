"""fakesnow's cursor, mended where Penstock needs it; runs in the emulator.

Names may hold any character, integers have all their 38 digits, MERGE is DuckDB's own, and DESCRIBE
TABLE shows types as they were declared.
"""

# ruff: noqa: SLF001, S608 - fakesnow's cursor is made to be filled from inside

from __future__ import annotations

import contextlib
import re
from typing import Any

import duckdb
import snowflake.connector.errors
from fakesnow.cursor import FakeSnowflakeCursor
from fakesnow.transforms.merge import operations
from sqlglot import Expr, exp

from penstock.emulator.snowflake import declared, tables
from penstock.emulator.snowflake.database import Connection, Database, quoted
from penstock.emulator.snowflake.errors import sql_error
from penstock.emulator.snowflake.names import unquoted

_INTEGERS = (
    exp.DataType.Type.INT,
    exp.DataType.Type.BIGINT,
    exp.DataType.Type.SMALLINT,
    exp.DataType.Type.TINYINT,
)
# DuckDB's have no size.
_UNSIZED = (
    exp.DataType.Type.BINARY,
    exp.DataType.Type.VARBINARY,
    exp.DataType.Type.TIME,
    exp.DataType.Type.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ,
    exp.DataType.Type.TIMESTAMPLTZ,
    exp.DataType.Type.TIMESTAMPTZ,
)
_ACTIONS = {"inserted": "INSERT", "updated": "UPDATE", "deleted": "DELETE"}


class Cursor(FakeSnowflakeCursor):
    """A cursor that runs one statement."""

    def __init__(self, database: Database, connection: Connection) -> None:
        super().__init__(conn=connection, duck_conn=connection._duck_conn)
        self._database = database
        self.connection = connection

    def run_parsed(self, expression: Expr, parameters: Any) -> None:
        """Run a statement that was parsed already."""
        if parameters is not None and not isinstance(parameters, dict):
            parameters = list(parameters)
        self.check_db_and_schema(expression)
        for statement in self._transform_explode(expression):
            transformed = self._transform(statement, parameters)
            self._execute(transformed, parameters if transformed.find(exp.Placeholder) else None)

    def begin(self) -> None:
        """Begin a transaction; within one, this is nothing."""
        if not self.connection.is_in_transaction:
            self._duck_conn.begin()
            self.connection.is_explicit = True
        self.say("Statement executed successfully.")

    def end(self, *, is_commit: bool) -> None:
        """Commit or roll back; without a transaction, this is nothing."""
        try:
            if self.connection.is_in_transaction:
                self.connection.is_explicit = False
                self.connection._in_transaction = False
                try:
                    self._duck_conn.commit() if is_commit else self._duck_conn.rollback()
                except duckdb.Error as exc:
                    with contextlib.suppress(duckdb.Error):
                        self._duck_conn.rollback()
                    raise translated(exc) from exc
        finally:
            self._database.change_lock.release(self.connection)
        self.say("Statement executed successfully.")

    def answer(self, sql: str, parameters: list[Any] | None = None) -> None:
        """Let the result be that of a statement of DuckDB, which is not looked at further."""
        self._duck_conn.execute(sql, parameters)
        self._finish(sql, parameters)

    def say(self, status: str) -> None:
        """Let the result be a status line."""
        self.answer(f"SELECT {text(status)} AS status")

    def _finish(self, sql: str, parameters: list[Any] | None = None) -> None:
        table: Any = self._duck_conn.to_arrow_table()
        # fakesnow's fields have no types but that of their first value, None.
        vars(self).update(
            _arrow_table=table,
            _arrow_table_fetch_index=None,
            _rowcount=table.num_rows,
            _last_sql=sql,
            _last_params=parameters,
            _last_transformed=exp.Select(),
        )

    def _transform_explode(self, expression: Expr) -> list[Expr]:
        if isinstance(expression, exp.Merge):
            return [expression]
        return list(super()._transform_explode(expression))

    def _transform(self, expression: Expr, params: Any) -> Expr:
        # One digit count instead of two keeps fakesnow from making 64 bits of them.
        for node in list(expression.find_all(exp.DataType)):
            params_of = [param.sql() for param in node.expressions]
            if node.this in _INTEGERS or (
                node.this == exp.DataType.Type.DECIMAL and params_of in ([], ["38", "0"])
            ):
                node.replace(exp.DataType.build("DECIMAL(38)", dialect="snowflake"))
        types = declared.types_of(expression)
        is_logged = declared.take_properties(expression)
        for node in expression.find_all(exp.DataType):
            if node.this in _UNSIZED:
                node.set("expressions", [])
        transformed = super()._transform(expression, params)
        transformed.args.pop("text_lengths", None)
        transformed.args["declared_types"] = types
        transformed.args["error_logging"] = is_logged
        return transformed

    def _execute(self, transformed: Expr, params: Any = None) -> None:
        if isinstance(transformed, exp.Merge):
            self._merge(transformed, params)
        elif declared.is_form_change(transformed):
            self._change_form(transformed)
        elif (
            isinstance(transformed, exp.Describe)
            and str(transformed.args.get("kind")).upper() == "TABLE"
        ):
            self._describe_table(transformed)
        else:
            super()._execute(transformed, params)

    def _merge(self, statement: exp.Merge, params: Any) -> None:
        for when in statement.find_all(exp.When):
            then = when.args.get("then")
            for change in then.expressions if isinstance(then, exp.Update) else []:
                # DuckDB knows whose column is set, and takes no table's name there.
                change.this.set("table", None)
        sql = statement.sql(dialect="duckdb") + " RETURNING merge_action"
        self._guarded(sql, params)
        actions = [action for (action,) in self._duck_conn.fetchall()]
        values = {name: actions.count(action) for name, action in _ACTIONS.items()}
        counted = ", ".join(
            f'{values[kind]} AS "number of rows {kind}"'
            for kind, clauses in operations(statement).items()
            if clauses
        )
        self.answer(f"SELECT {counted}")
        vars(self).update(_rowcount=len(actions))

    def _change_form(self, statement: Expr) -> None:
        """Create, alter or drop a table or schema; commits what was open, as in Snowflake."""
        self.commit_open()
        with self._database.form_lock:
            self._guarded(statement.sql(dialect="duckdb"), None)
            status = declared.record(
                self._duck_conn, statement, self._conn.database, self._conn.schema
            )
            if isinstance(statement, exp.Create) and statement.kind == "SCHEMA":
                named = statement.find(exp.Table)
                assert named is not None  # noqa: S101 - the statement has just been run
                self.use(named.catalog or str(self._conn.database), named.db)
        self.say(status)

    def forget_place(self) -> None:
        """Leave the session without a database."""
        self._duck_conn.execute("SET schema = 'memory.main'")
        self._conn.database = None
        self._conn.database_set = False
        self._conn._schema = None
        self._conn.schema_set = False

    def use(self, database: str, schema: str | None) -> None:
        """Make a database and schema the session's own."""
        where = f"{quoted(database)}.{quoted(schema or 'main')}"
        self._duck_conn.execute(f"SET schema = {text(where)}")
        self._conn.database = database
        self._conn.database_set = True
        self._conn._schema = schema
        self._conn.schema_set = schema is not None

    def commit_open(self) -> None:
        """Commit the open transaction, if there is one."""
        if self.connection.is_in_transaction:
            self.end(is_commit=True)

    def use_statement(self, statement: exp.Use) -> bool:
        """Run USE DATABASE or USE SCHEMA; tells whether it was one."""
        kind = str(statement.args.get("kind") or "DATABASE").upper()
        named = statement.this
        if kind not in ("DATABASE", "SCHEMA") or not isinstance(named, exp.Table):
            return False
        parts = [unquoted(part.sql(dialect="snowflake")) for part in named.parts]
        if kind == "DATABASE" and len(parts) == 1:
            parts.append("PUBLIC")
        database, schema = parts if len(parts) == 2 else (self._conn.database, parts[0])
        found = self._duck_conn.execute(
            "SELECT schema_name FROM duckdb_schemas() WHERE database_name = ? "
            "AND lower(schema_name) = lower(?)",
            [database, schema],
        ).fetchone()
        if found is None:
            raise sql_error(
                "Object does not exist, or operation cannot be performed.", 2043, "02000"
            )
        self.use(str(database), found[0])
        self.say("Statement executed successfully.")
        return True

    def _describe_table(self, statement: exp.Describe) -> None:
        named = statement.find(exp.Table)
        assert named is not None  # noqa: S101 - the grammar asks for one
        database = named.catalog or self._conn.database or ""
        schema = named.db or self._conn.schema or ""
        table = tables.find_table(self._duck_conn, database, schema, named.name)
        if table is None:
            super()._execute(statement)
            return
        rows = ", ".join(
            f"({i}, {text(c.name)}, {text(c.type)}, '{'Y' if c.is_nullable else 'N'}')"
            for i, c in enumerate(tables.describe(self._duck_conn, table))
        )
        self.answer(
            'SELECT name, type, \'COLUMN\' AS kind, "null?", NULL::VARCHAR AS "default", '
            '\'N\' AS "primary key", \'N\' AS "unique key", NULL::VARCHAR AS "check", '
            "NULL::VARCHAR AS expression, NULL::VARCHAR AS comment, "
            'NULL::VARCHAR AS "policy name", NULL::VARCHAR AS "privacy domain" '
            f'FROM (VALUES {rows}) AS c(position, name, type, "null?") ORDER BY position'
        )

    def _guarded(self, sql: str, params: Any) -> None:
        """Run a statement of DuckDB; its errors become Snowflake's."""
        try:
            self._duck_conn.execute(sql, params)
        except duckdb.Error as exc:
            raise translated(exc) from exc


# What a message of DuckDB holds, and the error that Snowflake has for it.
_NUMBERS = (
    ("affect the same target row more than once", 100090, "42P18"),
    ("already exists", 2002, "42710"),
    ("not found in FROM clause", 904, "42000"),
    ("does not have a column named", 904, "42000"),
    ("NOT NULL constraint failed", 100072, "22000"),
    ("does not exist", 2003, "42S02"),
)


def translated(error: Exception) -> snowflake.connector.errors.ProgrammingError:
    """Give an error of DuckDB the number that Snowflake's has, where there is one."""
    message = str(getattr(error, "raw_msg", None) or error)
    first = message.split("\n", maxsplit=1)[0]
    for part, number, state in _NUMBERS:
        if part in message:
            return sql_error(first, number, state)
    if isinstance(error, duckdb.ConversionException) or first.startswith("Conversion Error"):
        is_time = re.search(r"\b(date|time|timestamp)", first, re.IGNORECASE) is not None
        return sql_error(first, 100035 if is_time else 100038, "22007" if is_time else "22018")
    if isinstance(error, snowflake.connector.errors.ProgrammingError):
        return error
    return sql_error(first, 1003, "42000")


def text(value: str) -> str:
    """Write a text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"
