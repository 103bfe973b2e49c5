"""Rows as Spark gets them: typed columns of the table and those of the change; pure.

Runs in tasks, on whole batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.postgres.pgoutput import Op, RelationRows
from penstock.postgres.pgoutput.messages import Bools
from penstock.postgres.source.columns import TablePlan

_OP_NAMES = pa.array([op.name.lower() for op in Op], pa.string())


def typed_changes(
    plan: TablePlan, rows: RelationRows, places: Sequence[int | None]
) -> pa.RecordBatch:
    """Turn rows of the stream into a batch of the plan's schema."""
    count = len(rows)
    arrays = []
    masks: list[tuple[str, Bools]] = []
    for column, place in zip(plan.columns, places, strict=True):
        if place is None:
            arrays.append(pa.nulls(count, column.type.arrow))
            continue
        name = f"{plan.table.full_name}.{column.name}"
        arrays.append(column.type.from_text(rows.columns[place], name))
        mask = rows.unchanged[place]
        if mask is not None:
            masks.append((column.name, mask))
    arrays += change_meta(rows, masks)
    return pa.RecordBatch.from_arrays(arrays, schema=plan.arrow_schema)


def change_meta(rows: RelationRows, masks: Sequence[tuple[str, Bools]]) -> list[pa.Array]:
    """Give the columns that tell of the changes, in the order of META."""
    return [
        _OP_NAMES.take(pa.array(rows.op)),
        pa.array(rows.lsn.astype(np.int64)),
        pa.array(rows.ordinal),
        pa.array(rows.commit_time_us).cast(pa.timestamp("us", tz="UTC")),
        pa.array(rows.xid),
        name_lists(masks, len(rows)),
    ]


def name_lists(masks: Sequence[tuple[str, Bools]], count: int) -> pa.ListArray:
    """Give for each row the names whose mask is set there; vectorised over rows."""
    if not masks:
        offsets = pa.array(np.zeros(count + 1, np.int32))
        return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))
    table = np.column_stack([mask for _, mask in masks])
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(table.sum(axis=1), out=offsets[1:])
    # Row by row, and in a row by column.
    which = np.nonzero(table)[1]
    names = pa.array([name for name, _ in masks], pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(offsets), names)


def typed_snapshot(plan: TablePlan, batch: pa.RecordBatch, lsn: int | None) -> pa.RecordBatch:
    """Turn rows of the snapshot, whose columns are those of the plan, into the same schema."""
    arrays = [
        column.type.from_snapshot(batch.column(index), f"{plan.table.full_name}.{column.name}")
        for index, column in enumerate(plan.columns)
    ]
    arrays += snapshot_meta(batch.num_rows, lsn)
    return pa.RecordBatch.from_arrays(arrays, schema=plan.arrow_schema)


def snapshot_meta(count: int, lsn: int | None) -> list[pa.Array]:
    """Give the columns that tell of the snapshot, in the order of META."""
    position = pa.scalar(lsn, pa.int64())
    return [
        pa.repeat(pa.scalar("snapshot"), count),
        pa.nulls(count, pa.int64()) if lsn is None else pa.repeat(position, count),
        # Before every change of the transaction that may begin at the same position.
        pa.repeat(pa.scalar(-1, pa.int64()), count),
        pa.nulls(count, pa.timestamp("us", tz="UTC")),
        pa.nulls(count, pa.int64()),
        name_lists([], count),
    ]
