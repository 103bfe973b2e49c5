"""`spark.read.format("postgres_cdc")`: a table at one moment; plans on the driver, reads in a task.

Spark does not tell a batch reader when its tasks have ended, so nobody could hold a snapshot for
several of them: one task reads everything in one transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import SchemaError
from penstock.postgres.connection import connect_control
from penstock.postgres.options import PostgresCdcOptions, PostgresReadOptions
from penstock.postgres.privileges import check_privileges
from penstock.postgres.server import server_facts
from penstock.postgres.snapshot import snapshot_select
from penstock.postgres.source.plans import StreamPlan
from penstock.postgres.source.server import connection_settings, load_plan, row_filter
from penstock.postgres.source.task import SnapshotPartition, read_partition


def schema_of(options: PostgresCdcOptions) -> StructType:
    """Ask the server for the columns of a table.

    Raises:
        PenstockError: the server cannot be reached, or there is no such table.
    """
    with closing(connect_control(connection_settings(options))) as connection:
        return load_plan(connection, options)[0].spark_schema


class PostgresBatchReader(DataSourceReader):
    """One read."""

    def __init__(self, options: PostgresReadOptions, schema: StructType) -> None:
        self._options = PostgresCdcOptions(**_values(options))
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Called once, on the driver.

        Raises:
            PenstockError: the table cannot be read.
        """
        settings = connection_settings(self._options)
        with closing(connect_control(settings)) as connection:
            plan, publication = load_plan(connection, self._options)
            check_schema(plan, self._schema)
            version = server_facts(connection).version
            check_privileges(connection, plan.tables, needs_replication=False)
        (table,) = plan.tables
        select = snapshot_select(
            plan.snapshot_expressions(table),
            table.schema,
            table.name,
            None,
            row_filter(publication, table),
        )
        if table.kind == "p":
            select = select.replace(" FROM ONLY ", " FROM ", 1)
        return [SnapshotPartition(settings, plan, table, select, None, None, version)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in a worker."""
        return read_partition(partition)


def check_schema(plan: StreamPlan, schema: StructType) -> None:
    """Check that the table still has the columns that `load()` found.

    Raises:
        SchemaError: it has others.
    """
    if plan.spark_schema == schema:
        return
    raise SchemaError(
        "SCHEMA_FIXED",
        plan.subject,
        f"has the columns {plan.spark_schema.simpleString()}, and this query was made with "
        f"{schema.simpleString()}",
        "Leave out .schema(...), or load() again after the table was altered",
    )


def _values(options: PostgresReadOptions) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
