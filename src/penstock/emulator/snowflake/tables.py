"""What the emulator knows of tables beside DuckDB: declared types, error logging, default pipes.

Runs in the emulator.
"""

# ruff: noqa: S608 - names are quoted, values are parameters

from __future__ import annotations

import dataclasses

import duckdb

from penstock.emulator.snowflake.columns import Column, from_duckdb
from penstock.emulator.snowflake.database import HIDDEN_SCHEMA, Database, quoted
from penstock.emulator.snowflake.errors import RefusedError

DEFAULT_PIPE = "-STREAMING"


@dataclasses.dataclass(frozen=True)
class TableName:
    """Where a table is, spelled as it was created."""

    database: str
    schema: str
    name: str

    def sql(self) -> str:
        """Give the name as it stands in a statement."""
        return ".".join(quoted(part) for part in (self.database, self.schema, self.name))

    def hidden(self, table: str) -> str:
        """Name one of our own tables of the same database."""
        return f"{quoted(self.database)}.{HIDDEN_SCHEMA}._penstock_{table}"


def find_table(
    connection: duckdb.DuckDBPyConnection, database: str, schema: str, name: str
) -> TableName | None:
    """Find a table; DuckDB does not tell upper case from lower case in names."""
    found = connection.execute(
        "SELECT database_name, schema_name, table_name FROM duckdb_tables() WHERE "
        "lower(database_name) = lower(?) AND lower(schema_name) = lower(?) "
        "AND lower(table_name) = lower(?)",
        [database, schema, name],
    ).fetchone()
    return TableName(*found) if found else None


def describe(connection: duckdb.DuckDBPyConnection, table: TableName) -> list[Column]:
    """Give a table's columns, with the types they were declared with."""
    rows = connection.execute(
        "SELECT c.column_name, c.data_type, d.type, c.is_nullable FROM duckdb_columns() c "
        f"LEFT JOIN {table.hidden('columns')} d ON d.schema = c.schema_name "
        'AND d."table" = c.table_name AND d."column" = c.column_name '
        "WHERE c.database_name = ? AND c.schema_name = ? AND c.table_name = ? "
        "ORDER BY c.column_index",
        [table.database, table.schema, table.name],
    ).fetchall()
    return [
        Column(name, declared or from_duckdb(data_type), nullable)
        for name, data_type, declared, nullable in rows
    ]


def has_error_logging(connection: duckdb.DuckDBPyConnection, table: TableName) -> bool:
    """Tell whether refused rows of this table are kept."""
    row = connection.execute(
        f'SELECT error_logging FROM {table.hidden("tables")} WHERE schema = ? AND "table" = ?',
        [table.schema, table.name],
    ).fetchone()
    return bool(row and row[0])


def set_error_logging(
    connection: duckdb.DuckDBPyConnection, table: TableName, *, is_on: bool
) -> None:
    """Keep refused rows of this table from now on, or no longer."""
    where = [table.schema, table.name]
    connection.execute(
        f'DELETE FROM {table.hidden("tables")} WHERE schema = ? AND "table" = ?', where
    )
    connection.execute(f"INSERT INTO {table.hidden('tables')} VALUES (?, ?, ?)", [*where, is_on])


def note_inserts(
    database: Database, connection: duckdb.DuckDBPyConnection, table: TableName, rows: int
) -> None:
    """Count rows for the streams on a table, in the transaction that inserts them."""
    if (table.database, table.schema, table.name) in database.streamed:
        connection.execute(
            f"INSERT INTO {table.hidden('inserts')} VALUES (?, ?, ?)",
            [table.schema, table.name, rows],
        )


def target_of(database: Database, db: str, schema: str, pipe: str) -> TableName:
    """Find the table that a pipe writes to: its own pipe, or a named one."""
    connection = database.cursor()
    try:
        if not connection.execute(
            "SELECT 1 FROM duckdb_schemas() WHERE lower(database_name) = lower(?) "
            "AND lower(schema_name) = lower(?)",
            [db, schema],
        ).fetchone():
            raise RefusedError(
                404,
                "ERR_DATABASE_OR_SCHEMA_DOES_NOT_EXIST_OR_NOT_AUTHORIZED",
                f"Database or schema {db}.{schema} does not exist or is not authorized",
            )
        named = connection.execute(
            "SELECT target FROM _fs_global._penstock.pipes WHERE lower(database) = lower(?) "
            "AND lower(schema) = lower(?) AND lower(name) = lower(?)",
            [db, schema, pipe],
        ).fetchone()
        table = None
        if named:
            table = find_table(connection, *named[0])
        elif pipe.upper().endswith(DEFAULT_PIPE):
            table = find_table(connection, db, schema, pipe[: -len(DEFAULT_PIPE)])
    finally:
        connection.close()
    if table is None:
        raise RefusedError(
            404,
            "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED",
            f"Pipe {db}.{schema}.{pipe}, or the table behind it, does not exist or is not "
            "authorized",
        )
    return table
