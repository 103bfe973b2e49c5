"""Tables out of a stream of many: each with its columns and types; driver and workers.

changes = spark.readStream.format("postgres_cdc").option("tables", "shop.*")....load()
orders = typed_table(changes, "shop.orders", url=...)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from penstock.postgres.connection import connect_control
from penstock.postgres.options import PostgresCdcOptions
from penstock.postgres.source.columns import META, TablePlan
from penstock.postgres.source.plans import OneTable
from penstock.postgres.source.server import connection_settings, load_plan


def typed_table(changes: DataFrame, table: str, **options: str) -> DataFrame:
    """Give the rows of one table of a stream of many, as a stream of that table would have them.

    Args:
        changes: what `load()` gave with the option `tables`.
        table: `schema.table`, as for the option `table`.
        options: those of the format that say how to reach the server and how to read its types:
            at least `url`.

    Raises:
        PenstockError: an option is wrong, or there is no such table.
    """
    parsed = PostgresCdcOptions.parse({**options, "table": table})
    with closing(connect_control(connection_settings(parsed))) as connection:
        found, _ = load_plan(connection, parsed)
    assert isinstance(found, OneTable)  # noqa: S101 - one was asked for
    plan = found.plan
    rows = changes.where(F.col(plan.meta_prefix + "table") == plan.table.full_name)
    return rows.mapInArrow(_Typed(plan), plan.spark_schema)


@dataclass(frozen=True)
class _Typed:
    """Picklable: runs in the workers, on whole batches."""

    plan: TablePlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._convert(batch)

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        plan = self.plan
        values = batch.column("values")
        # Spark may have marked it otherwise; the lookup wants exactly this.
        values = values.cast(pa.map_(pa.string(), pa.string()))
        arrays = [
            column.type.from_text(
                pc.map_lookup(values, query_key=pa.scalar(column.name), occurrence="first"),
                f"{plan.table.full_name}.{column.name}",
            )
            for column in plan.columns
        ]
        arrays += [
            batch.column(plan.meta_prefix + name).cast(kind) for name, (_, kind) in META.items()
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=plan.arrow_schema)
