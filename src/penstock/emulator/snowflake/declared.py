"""Types as they were declared, which DuckDB does not keep; runs in the emulator."""

# ruff: noqa: S608 - names are quoted, values are parameters

from __future__ import annotations

from typing import Any

import duckdb
from sqlglot import Expr, exp

from penstock.emulator.snowflake.errors import sql_error
from penstock.emulator.snowflake.tables import TableName, find_table, set_error_logging

_T = exp.DataType.Type
_LENGTHS = {"VARCHAR": 16_777_216, "BINARY": 8_388_608}
_NAMES = {
    _T.DECIMAL: "NUMBER",
    _T.FLOAT: "FLOAT",
    _T.DOUBLE: "FLOAT",
    _T.VARCHAR: "VARCHAR",
    _T.TEXT: "VARCHAR",
    _T.CHAR: "VARCHAR",
    _T.NCHAR: "VARCHAR",
    _T.NVARCHAR: "VARCHAR",
    _T.BINARY: "BINARY",
    _T.VARBINARY: "BINARY",
    _T.BOOLEAN: "BOOLEAN",
    _T.DATE: "DATE",
    _T.TIME: "TIME",
    _T.DATETIME: "TIMESTAMP_NTZ",
    _T.TIMESTAMP: "TIMESTAMP_NTZ",
    _T.TIMESTAMPNTZ: "TIMESTAMP_NTZ",
    _T.TIMESTAMPLTZ: "TIMESTAMP_LTZ",
    _T.TIMESTAMPTZ: "TIMESTAMP_TZ",
    _T.VARIANT: "VARIANT",
    _T.ARRAY: "ARRAY",
    _T.LIST: "ARRAY",
    _T.OBJECT: "OBJECT",
    _T.STRUCT: "OBJECT",
}


def is_form_change(statement: Expr) -> bool:
    """Tell whether a statement creates, alters or drops a table or schema."""
    if isinstance(statement, exp.Create | exp.Drop):
        return str(statement.args.get("kind")).upper() in ("TABLE", "SCHEMA", "VIEW")
    return isinstance(statement, exp.Alter)


def take_properties(statement: Expr) -> bool:
    """Take away properties that DuckDB does not know; tells whether errors shall be logged."""
    properties = statement.args.get("properties")
    if not isinstance(statement, exp.Create) or not isinstance(properties, exp.Properties):
        return False
    is_logged = False
    for entry in list(properties.expressions):
        name = entry.name.upper() if type(entry) is exp.Property else ""
        value = str(entry.args.get("value")).upper()
        if name == "ENABLE_SCHEMA_EVOLUTION" and value == "TRUE":
            raise sql_error("the emulator has no schema evolution of its own", 2, "0A000")
        is_logged = is_logged or (name == "ERROR_LOGGING" and value == "TRUE")
        if name:
            entry.pop()
    return is_logged


def types_of(statement: Expr) -> dict[str, str]:
    """Give the Snowflake types that a statement declares for columns."""
    if not isinstance(statement, exp.Create | exp.Alter):
        return {}
    found = {}
    for column in statement.find_all(exp.ColumnDef):
        kind = column.args.get("kind")
        if isinstance(kind, exp.DataType) and (shown := _shown(kind)):
            found[_name(column.this)] = shown
    for change in statement.find_all(exp.AlterColumn):
        kind = change.args.get("dtype")
        if isinstance(kind, exp.DataType) and (shown := _shown(kind)):
            found[_name(change.this)] = shown
    return found


def _name(node: Any) -> str:
    identifier = node if isinstance(node, exp.Identifier) else node.find(exp.Identifier)
    return str(identifier.this if identifier.quoted else identifier.this.upper())


def _shown(kind: exp.DataType) -> str | None:
    name = _NAMES.get(kind.this)
    sizes = [param.sql() for param in kind.expressions]
    if name == "NUMBER":
        return f"NUMBER({sizes[0] if sizes else 38},{sizes[1] if len(sizes) > 1 else 0})"
    if name in _LENGTHS:
        default = 1 if kind.this in (_T.CHAR, _T.NCHAR) else _LENGTHS[name]
        return f"{name}({sizes[0] if sizes else default})"
    if name is not None and name.startswith("TIME"):
        return f"{name}({sizes[0] if sizes else 9})"
    return name


def record(
    connection: duckdb.DuckDBPyConnection,
    statement: Expr,
    database: str | None,
    schema: str | None,
) -> str:
    """Note what a statement that was run has declared; returns its status line."""
    named = statement.find(exp.Table)
    kind = str(statement.args.get("kind")).upper()
    name = (named.db if kind == "SCHEMA" else named.name) if named is not None else ""
    is_temporary = bool(statement.find(exp.TemporaryProperty))
    if named is not None and kind == "TABLE" and not is_temporary:
        table = TableName(named.catalog or str(database), named.db or str(schema), named.name)
        if isinstance(statement, exp.Create):
            found = find_table(connection, table.database, table.schema, table.name)
            is_kept = bool(statement.args.get("exists")) and _is_known(connection, found or table)
            if not is_kept:
                _forget(connection, found or table)
                _remember(connection, found or table, statement.args.get("declared_types", {}))
                if statement.args.get("error_logging"):
                    set_error_logging(connection, found or table, is_on=True)
        elif isinstance(statement, exp.Drop):
            _forget(connection, table)
        else:
            found = find_table(connection, table.database, table.schema, table.name)
            _remember(connection, found or table, statement.args.get("declared_types", {}))
    if isinstance(statement, exp.Create):
        return f"{kind.capitalize()} {name} successfully created."
    if isinstance(statement, exp.Drop):
        return f"{name} successfully dropped."
    return "Statement executed successfully."


def _is_known(connection: duckdb.DuckDBPyConnection, table: TableName) -> bool:
    return bool(
        connection.execute(
            f'SELECT 1 FROM {table.hidden("columns")} WHERE schema = ? AND "table" = ?',
            [table.schema, table.name],
        ).fetchone()
    )


def _forget(connection: duckdb.DuckDBPyConnection, table: TableName) -> None:
    for kept in ("columns", "tables"):
        connection.execute(
            f"DELETE FROM {table.hidden(kept)} "
            'WHERE lower(schema) = lower(?) AND lower("table") = lower(?)',
            [table.schema, table.name],
        )


def _remember(
    connection: duckdb.DuckDBPyConnection, table: TableName, types: dict[str, str]
) -> None:
    for column, kind in types.items():
        connection.execute(
            f'DELETE FROM {table.hidden("columns")} WHERE schema = ? AND "table" = ? '
            'AND "column" = ?',
            [table.schema, table.name, column],
        )
        connection.execute(
            f"INSERT INTO {table.hidden('columns')} VALUES (?, ?, ?, ?)",
            [table.schema, table.name, column, kind],
        )
