"""The columns of a table in Spark: its own, typed, and those that tell of the change; pure.

Made on the driver from the catalog, carried to the tasks inside partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as spark

from penstock.errors import OptionError, SchemaError
from penstock.postgres.model import Column, Table
from penstock.postgres.options import PostgresReadOptions
from penstock.postgres.publication import Publication
from penstock.postgres.types import ColumnType, TypePolicy, column_type

# Name without its prefix -> Spark type, Arrow type. The order is that of the columns.
META: dict[str, tuple[spark.DataType, pa.DataType]] = {
    # insert, update, delete, truncate, snapshot
    "op": (spark.StringType(), pa.string()),
    # Where the transaction's commit record starts, as a number: (_lsn, _ordinal) orders all rows.
    "lsn": (spark.LongType(), pa.int64()),
    "ordinal": (spark.LongType(), pa.int64()),
    "commit_time": (spark.TimestampType(), pa.timestamp("us", tz="UTC")),
    "xid": (spark.LongType(), pa.int64()),
    # Names of columns whose large value did not change and was not sent.
    "unchanged": (spark.ArrayType(spark.StringType()), pa.list_(pa.string())),
}


@dataclass(frozen=True)
class PlannedColumn:
    """One column of the table as it is read."""

    name: str
    type_oid: int
    type: ColumnType


@dataclass(frozen=True)
class TablePlan:
    """How a table is read. Picklable."""

    table: Table
    columns: tuple[PlannedColumn, ...]
    meta_prefix: str

    @property
    def spark_schema(self) -> spark.StructType:
        """What `load()` has."""
        fields = [spark.StructField(column.name, column.type.spark) for column in self.columns]
        fields += [
            spark.StructField(self.meta_prefix + name, kind) for name, (kind, _) in META.items()
        ]
        return spark.StructType(fields)

    @property
    def arrow_schema(self) -> pa.Schema:
        """What Spark has to be given."""
        fields = [pa.field(column.name, column.type.arrow) for column in self.columns]
        fields += [pa.field(self.meta_prefix + name, kind) for name, (_, kind) in META.items()]
        return pa.schema(fields)


def plan_table(
    table: Table, publication: Publication | None, version: int, options: PostgresReadOptions
) -> TablePlan:
    """Decide on the columns of a table.

    Raises:
        OptionError: a column of the table has the name of one that is added.
        SchemaError: two columns differ only in upper and lower case, which Spark does not.
    """
    policy = TypePolicy(
        out_of_range=options.out_of_range,  # type: ignore[arg-type]
        unbounded_numeric=options.unbounded_numeric,  # type: ignore[arg-type]
        nested=options.nested,  # type: ignore[arg-type]
    )
    columns = sent_columns(table, publication, version)
    _check_names(table, columns, options.meta_prefix)
    return TablePlan(
        table=table,
        columns=tuple(
            PlannedColumn(column.name, column.type.oid, column_type(column.type, policy))
            for column in columns
        ),
        meta_prefix=options.meta_prefix,
    )


def sent_columns(table: Table, publication: Publication | None, version: int) -> tuple[Column, ...]:
    """Give the columns that the stream has: what the publication sends, or one of ours would."""
    published = publication.table(table.oid) if publication is not None else None
    if published is not None:
        return tuple(column for column in table.columns if column.name in published.columns)
    with_stored = version >= 180_000
    return tuple(
        column
        for column in table.columns
        if not column.generated or (column.generated == "s" and with_stored)
    )


def _check_names(table: Table, columns: Sequence[Column], prefix: str) -> None:
    added = {(prefix + name).lower() for name in META}
    seen: dict[str, str] = {}
    for column in columns:
        lowered = column.name.lower()
        if lowered in added:
            raise OptionError(
                "META_PREFIX",
                f"Column '{column.name}' of table '{table.full_name}'",
                "has the name of a column that the stream adds",
                'Set another prefix for those, for example .option("metaPrefix", "_cdc_")',
            )
        if lowered in seen:
            raise SchemaError(
                "COLUMN_CASE",
                f"Columns '{seen[lowered]}' and '{column.name}' of table '{table.full_name}'",
                "differ in upper and lower case only, and Spark does not tell them apart",
                "Leave one of them out with a column list in the publication",
            )
        seen[lowered] = column.name
