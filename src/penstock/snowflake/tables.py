"""Tables as the stream needs them: looked at, created, widened; runs on the driver.

Says before the first row is sent what does not fit. Never drops or narrows anything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError, ResourceError, SchemaError
from penstock.snowflake.connection import execute
from penstock.snowflake.identifiers import TableName, quote, read_name, shown
from penstock.snowflake.types import SnowType, takes, widened

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Needed:
    """A column that rows will have."""

    # As in the DataFrame.
    name: str
    type: SnowType
    # As Spark calls its type, for messages.
    spark: str


@dataclass(frozen=True)
class TableColumn:
    """A column that a table has."""

    name: str
    type: SnowType
    is_nullable: bool


@dataclass(frozen=True)
class Rights:
    """What may be done to a table."""

    may_create: bool
    may_evolve: bool


def new_name(name: str) -> str:
    """Give the name that a column is created with: as SQL reads it, so `id` is found as ID."""
    try:
        return name if '"' in name or "." in name else read_name(name)
    except ValueError:
        return name


def describe(connection: Any, table: TableName) -> list[TableColumn] | None:
    """Give the columns of a table, None if there is none."""
    try:
        rows = execute(connection, f"DESCRIBE TABLE {table.sql}", f"Table {table}")
    except ResourceError as exc:
        if exc.code != "SNOWFLAKE_OBJECT":
            raise
        return None
    return [TableColumn(row[0], SnowType.parse(row[1]), row[3] == "Y") for row in rows]


def ensure_table(
    connection: Any, table: TableName, needed: Sequence[Needed], rights: Rights
) -> list[TableColumn]:
    """Make a table fit the rows, or say why it does not; gives the column for each needed one.

    Raises:
        ResourceError: the table is missing.
        SchemaError: a column is missing or of another type.
    """
    columns = describe(connection, table)
    if columns is None:
        if not rights.may_create:
            raise _missing(connection, table)
        columns = _create(connection, table, needed)
    found: list[TableColumn] = []
    for one in needed:
        there = _match(columns, one.name, table)
        if there is None:
            there = _add(connection, table, one, rights)
        elif not takes(there.type, one.type) or _is_bounded(there, one, rights):
            there = _widen(connection, table, there, one, rights)
        found.append(there)
    names = {column.name for column in found}
    for column in columns:
        if column.name not in names and not column.is_nullable:
            _relax(connection, table, column, rights)
    return found


def _missing(connection: Any, table: TableName) -> ResourceError:
    subject = f"Table {table}"
    try:
        execute(connection, f"DESCRIBE SCHEMA {table.schema_sql}", subject)
        fact = "does not exist, or the role may not see it"
    except PenstockError:
        fact = (
            f"database {shown(table.database)} or its schema {shown(table.schema)} does not exist, "
            "or the role may not see it"
        )
    return ResourceError(
        "TABLE_MISSING",
        subject,
        fact,
        'Correct option \'table\', grant the role access, or set .option("createTable", "true")',
    )


def _create(connection: Any, table: TableName, needed: Sequence[Needed]) -> list[TableColumn]:
    columns = [TableColumn(new_name(one.name), one.type, is_nullable=True) for one in needed]
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise SchemaError(
            "COLUMN_TWICE",
            f"Table {table}",
            f"two columns of the DataFrame would both be {shown(double)}",
            "Rename one of them",
        )
    body = ", ".join(f"{quote(column.name)} {column.type}" for column in columns)
    # Rows that the service refuses are then kept, and can be looked at.
    execute(
        connection,
        f"CREATE TABLE IF NOT EXISTS {table.sql} ({body}) ERROR_LOGGING = TRUE",
        f"Table {table}",
    )
    _log.info("created table %s", table)
    return describe(connection, table) or columns


def _match(columns: Sequence[TableColumn], name: str, table: TableName) -> TableColumn | None:
    """Find a column by its name; as in Spark, upper and lower case are the same."""
    for column in columns:
        if column.name == name:
            return column
    close = [column for column in columns if column.name.lower() == name.lower()]
    if len(close) > 1:
        raise SchemaError(
            "COLUMN_AMBIGUOUS",
            f"Column '{name}'",
            f"table {table} has {' and '.join(shown(column.name) for column in close)}",
            "Rename it in the DataFrame to be exactly one of them",
        )
    return close[0] if close else None


def _add(connection: Any, table: TableName, one: Needed, rights: Rights) -> TableColumn:
    if not rights.may_evolve:
        raise SchemaError(
            "COLUMN_MISSING",
            f"Column '{one.name}' ({one.spark})",
            f"table {table} has no such column",
            f"Add it: ALTER TABLE {table.sql} ADD COLUMN {quote(new_name(one.name))} {one.type}; "
            'or set .option("evolveSchema", "true"); or leave it out with .drop',
        )
    column = TableColumn(new_name(one.name), one.type, is_nullable=True)
    execute(
        connection,
        f"ALTER TABLE {table.sql} ADD COLUMN IF NOT EXISTS {quote(column.name)} {column.type}",
        f"Column {shown(column.name)} of table {table}",
    )
    _log.info("added column %s %s to table %s", shown(column.name), column.type, table)
    return column


def _is_bounded(there: TableColumn, one: Needed, rights: Rights) -> bool:
    # A text's length is not known before it comes: with the right to evolve, any has a place.
    return (
        rights.may_evolve
        and there.type.name == one.type.name
        and there.type.name in ("VARCHAR", "BINARY")
        and (there.type.size or 0) < (one.type.size or 0)
    )


def _widen(
    connection: Any, table: TableName, there: TableColumn, one: Needed, rights: Rights
) -> TableColumn:
    wide = widened(there.type, one.type)
    if wide is None or not rights.may_evolve:
        remedy = f"Cast the column in the DataFrame to what {there.type} takes"
        if wide is not None:
            remedy = (
                f"Widen it: ALTER TABLE {table.sql} ALTER COLUMN {quote(there.name)} SET DATA TYPE "
                f'{wide}; or set .option("evolveSchema", "true")'
            )
        elif there.type.name == "VARIANT" or there.type.name in ("OBJECT", "ARRAY"):
            remedy = "Cast it; a string that holds JSON is named in option 'jsonColumns' instead"
        raise SchemaError(
            "COLUMN_TYPE",
            f"Column '{one.name}'",
            f"it is {one.spark}, which needs {one.type}, but {shown(there.name)} of table {table} "
            f"is {there.type}",
            remedy,
        )
    execute(
        connection,
        f"ALTER TABLE {table.sql} ALTER COLUMN {quote(there.name)} SET DATA TYPE {wide}",
        f"Column {shown(there.name)} of table {table}",
    )
    _log.info("widened column %s of table %s to %s", shown(there.name), table, wide)
    return TableColumn(there.name, wide, there.is_nullable)


def _relax(connection: Any, table: TableName, column: TableColumn, rights: Rights) -> None:
    if not rights.may_evolve:
        raise SchemaError(
            "COLUMN_REQUIRED",
            f"Column {shown(column.name)} of table {table}",
            "is NOT NULL, and the DataFrame has no such column, so every row would be refused",
            "Add it to the DataFrame, drop NOT NULL from it, or set "
            '.option("evolveSchema", "true"), which does that',
        )
    execute(
        connection,
        f"ALTER TABLE {table.sql} ALTER COLUMN {quote(column.name)} DROP NOT NULL",
        f"Column {shown(column.name)} of table {table}",
    )
    _log.info("dropped NOT NULL from column %s of table %s", shown(column.name), table)
