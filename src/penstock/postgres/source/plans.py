"""What a stream reads and how its rows look: one table with its columns, or many in one form.

Made on the driver, carried to the tasks. Picklable; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import types as spark

from penstock.postgres.identifiers import quote_identifier
from penstock.postgres.model import Table
from penstock.postgres.pgoutput import Relation, RelationRows
from penstock.postgres.source.columns import META, TablePlan
from penstock.postgres.source.generic import VALUES_TYPE, change_values, value_maps
from penstock.postgres.source.matching import TableNow, match_columns
from penstock.postgres.source.typed import (
    change_meta,
    snapshot_meta,
    typed_changes,
    typed_snapshot,
)
from penstock.postgres.types.reading import as_string, output_sql

# For each column of the query its place in the relation; None where it has none.
Places = Sequence[int | None]


class StreamPlan(Protocol):
    """What tasks and planning ask of either kind."""

    @property
    def subject(self) -> str:
        """What is read, for messages."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that are read."""

    @property
    def spark_schema(self) -> spark.StructType:
        """What `load()` has."""

    def snapshot_expressions(self, table: Table) -> list[str]:
        """Write what is selected of each column of a table."""

    def snapshot_batch(
        self, table: Table, batch: pa.RecordBatch, lsn: int | None
    ) -> pa.RecordBatch:
        """Turn rows of the snapshot of a table into rows of the query."""

    def match(self, relation: Relation, now: TableNow, *, evolves: bool) -> Places | None:
        """Find the columns of the query in a relation; None if its rows are not wanted."""

    def change_batch(self, rows: RelationRows, places: Places) -> pa.RecordBatch:
        """Turn changes into rows of the query."""

    def primary_key(self, relation: Relation) -> Collection[str]:
        """Give the key by which an update is told to have changed it."""


@dataclass(frozen=True)
class OneTable:
    """A table with its own columns, typed."""

    plan: TablePlan

    @property
    def subject(self) -> str:
        """What is read, for messages."""
        return f"Table '{self.plan.table.full_name}'"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The one table."""
        return (self.plan.table,)

    @property
    def spark_schema(self) -> spark.StructType:
        """What `load()` has."""
        return self.plan.spark_schema

    def snapshot_expressions(self, table: Table) -> list[str]:
        """Write what is selected of each column."""
        del table
        names = [quote_identifier(column.name) for column in self.plan.columns]
        return [
            f"{column.type.snapshot_sql(name)} AS {name}"
            for column, name in zip(self.plan.columns, names, strict=True)
        ] or ["NULL"]

    def snapshot_batch(
        self, table: Table, batch: pa.RecordBatch, lsn: int | None
    ) -> pa.RecordBatch:
        """Turn rows of the snapshot into rows of the query."""
        del table
        return typed_snapshot(self.plan, batch, lsn)

    def match(self, relation: Relation, now: TableNow, *, evolves: bool) -> Places | None:
        """Find the columns; another oid is another table, also under the same name."""
        if relation.oid != self.plan.table.oid:
            return None
        return match_columns(self.plan, relation, now, evolves=evolves)

    def change_batch(self, rows: RelationRows, places: Places) -> pa.RecordBatch:
        """Turn changes into rows of the query."""
        return typed_changes(self.plan, rows, places)

    def primary_key(self, relation: Relation) -> Collection[str]:
        """Give the table's primary key."""
        del relation
        return self.plan.table.primary_key


@dataclass(frozen=True)
class ManyTables:
    """Many tables, each row with its table's name and its values as texts by column."""

    # As the user has written them.
    text: str
    tables: tuple[Table, ...]
    # Of each table the columns that the stream has, in the same order.
    columns: tuple[tuple[str, ...], ...]
    meta_prefix: str

    @property
    def subject(self) -> str:
        """What is read, for messages."""
        return f"Tables '{self.text}'"

    @property
    def spark_schema(self) -> spark.StructType:
        """What `load()` has."""
        text = spark.StringType()
        fields = [
            spark.StructField(self.meta_prefix + "table", text),
            spark.StructField("values", spark.MapType(text, text)),
        ]
        fields += [
            spark.StructField(self.meta_prefix + name, kind) for name, (kind, _) in META.items()
        ]
        return spark.StructType(fields)

    @property
    def _arrow_schema(self) -> pa.Schema:
        fields = [(self.meta_prefix + "table", pa.string()), ("values", VALUES_TYPE)]
        fields += [(self.meta_prefix + name, kind) for name, (_, kind) in META.items()]
        return pa.schema(fields)

    def snapshot_expressions(self, table: Table) -> list[str]:
        """Write each column as the text that the stream has."""
        names = [quote_identifier(name) for name in self._columns(table)]
        return [f"{output_sql(name)} AS {name}" for name in names] or ["NULL"]

    def _columns(self, table: Table) -> tuple[str, ...]:
        return self.columns[self.tables.index(table)]

    def snapshot_batch(
        self, table: Table, batch: pa.RecordBatch, lsn: int | None
    ) -> pa.RecordBatch:
        """Turn rows of the snapshot of a table into rows of the query."""
        names = self._columns(table)
        texts = [as_string(batch.column(index)) for index in range(len(names))]
        arrays = [
            pa.repeat(pa.scalar(table.full_name), batch.num_rows),
            value_maps(names, texts, None, batch.num_rows),
            *snapshot_meta(batch.num_rows, lsn),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def match(self, relation: Relation, now: TableNow, *, evolves: bool) -> Places | None:
        """Take the columns as they are: a row names its own."""
        del now, evolves
        is_wanted = any(table.oid == relation.oid for table in self.tables)
        return tuple(range(len(relation.columns))) if is_wanted else None

    def change_batch(self, rows: RelationRows, places: Places) -> pa.RecordBatch:
        """Turn changes into rows of the query."""
        del places
        masks = [
            (column.name, mask)
            for column, mask in zip(rows.relation.columns, rows.unchanged, strict=True)
            if mask is not None
        ]
        arrays = [
            pa.repeat(pa.scalar(rows.relation.full_name), len(rows)),
            change_values(rows),
            *change_meta(rows, masks),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def primary_key(self, relation: Relation) -> Collection[str]:
        """Give the primary key of the relation's table."""
        return next((table.primary_key for table in self.tables if table.oid == relation.oid), ())
