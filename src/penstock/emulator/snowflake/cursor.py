"""fakesnow's cursor, mended where Penstock needs it; runs in the emulator.

Names may hold any character, integers have all their 38 digits, MERGE is DuckDB's own, and DESCRIBE
TABLE shows types as they were declared.
"""

# ruff: noqa: SLF001, S608 - fakesnow's cursor is made to be filled from inside

from __future__ import annotations

from typing import Any

import duckdb
import snowflake.connector.errors
from fakesnow.conn import FakeSnowflakeConnection
from fakesnow.cursor import FakeSnowflakeCursor
from fakesnow.transforms.merge import operations
from sqlglot import exp

from penstock.emulator.snowflake import declared, tables
from penstock.emulator.snowflake.database import Database, quoted
from penstock.emulator.snowflake.errors import sql_error

_INTEGERS = (
    exp.DataType.Type.INT,
    exp.DataType.Type.BIGINT,
    exp.DataType.Type.SMALLINT,
    exp.DataType.Type.TINYINT,
)
_ACTIONS = {"inserted": "INSERT", "updated": "UPDATE", "deleted": "DELETE"}


class Cursor(FakeSnowflakeCursor):
    """A cursor that runs one statement."""

    def __init__(self, database: Database, connection: FakeSnowflakeConnection) -> None:
        super().__init__(conn=connection, duck_conn=connection._duck_conn)
        self._database = database

    def answer(self, sql: str, parameters: list[Any] | None = None) -> None:
        """Let the result be that of a statement of DuckDB, which is not looked at further."""
        self._duck_conn.execute(sql, parameters)
        self._finish(sql, parameters)

    def say(self, status: str) -> None:
        """Let the result be a status line."""
        self.answer(f"SELECT {text(status)} AS status")

    def _finish(self, sql: str, parameters: list[Any] | None = None) -> None:
        self._arrow_table = self._duck_conn.to_arrow_table()
        self._rowcount = self._arrow_table.num_rows
        self._last_sql = sql
        self._last_params = parameters
        self._last_transformed = exp.Select()
        self._sfqid = "00000000-0000-0000-0000-000000000000"

    def _transform_explode(self, expression: exp.Expression) -> list[exp.Expression]:
        if isinstance(expression, exp.Merge):
            return [expression]
        return list(super()._transform_explode(expression))

    def _transform(self, expression: exp.Expression, params: Any) -> exp.Expression:
        # One digit count instead of two keeps fakesnow from making 64 bits of them.
        for node in list(expression.find_all(exp.DataType)):
            params_of = [param.sql() for param in node.expressions]
            if node.this in _INTEGERS or (
                node.this == exp.DataType.Type.DECIMAL and params_of in ([], ["38", "0"])
            ):
                node.replace(exp.DataType.build("DECIMAL(38)", dialect="snowflake"))
        types = declared.types_of(expression)
        transformed = super()._transform(expression, params)
        transformed.args.pop("text_lengths", None)
        transformed.args["declared_types"] = types
        return transformed

    def _execute(self, transformed: exp.Expression, params: Any = None) -> None:
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
        self._rowcount = len(actions)

    def _change_form(self, statement: exp.Expression) -> None:
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
        try:
            self._duck_conn.commit()
        except duckdb.TransactionException:
            pass
        self._conn._in_transaction = False

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


def translated(error: duckdb.Error) -> snowflake.connector.errors.ProgrammingError:
    """Give an error of DuckDB the number that Snowflake's has, where there is one."""
    message = str(error)
    first = message.split("\n", maxsplit=1)[0]
    if "affect the same target row more than once" in message:
        return sql_error("Duplicate row detected during DML action", 100090, "42P18")
    if "already exists" in first:
        return sql_error(first, 2002, "42710")
    if isinstance(error, duckdb.CatalogException):
        return sql_error(first, 2003, "42S02")
    if isinstance(error, duckdb.BinderException):
        return sql_error(first, 904, "42000")
    if isinstance(error, duckdb.ConstraintException):
        return sql_error(first, 100072, "22000")
    if isinstance(error, duckdb.ConversionException):
        return sql_error(first, 100038, "22018")
    return sql_error(first, 1003, "42000")


def text(value: str) -> str:
    """Write a text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"
