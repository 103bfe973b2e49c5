"""Rows of many tables in one form: the table's name, and the row's texts by column; pure.

A stream of many tables has no columns of its own: each row has those of its table at the time it
was written. `penstock.postgres.tables` gives them their types back, table by table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.postgres.pgoutput import Op, RelationRows

VALUES_TYPE = pa.map_(pa.string(), pa.string())
Bools = npt.NDArray[np.bool_]


def change_values(rows: RelationRows) -> pa.MapArray:
    """Give the values that each row was sent with: of a delete its key, of a truncate nothing."""
    columns = rows.relation.columns
    count = len(rows)
    sent = np.ones((count, len(columns)), np.bool_)
    for index, mask in enumerate(rows.unchanged):
        if mask is not None:
            sent[:, index] = ~mask
    is_deleted = rows.op == Op.DELETE
    if rows.relation.replica_identity != "f" and is_deleted.any():
        is_key = np.array([column.is_key for column in columns], np.bool_)
        sent[is_deleted] &= is_key
    sent[rows.op == Op.TRUNCATE] = False
    return value_maps([column.name for column in columns], rows.columns, sent, count)


def value_maps(
    names: Sequence[str], columns: Sequence[pa.StringArray], sent: Bools | None, count: int
) -> pa.MapArray:
    """Put columns of text together, row by row; `sent` says which values a row has at all."""
    width = len(names)
    # Column after column, read row after row.
    order = np.arange(count)[:, None] + np.arange(width)[None, :] * count
    which = np.broadcast_to(np.arange(width)[None, :], (count, width))
    if sent is None:
        lengths = np.full(count, width)
        order, which = order.ravel(), which.ravel()
    else:
        lengths = sent.sum(axis=1)
        order, which = order[sent], which[sent]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    texts = pa.concat_arrays(list(columns)) if columns else pa.array([], pa.string())
    keys = pa.array(list(names), pa.string()).take(pa.array(which))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, texts.take(pa.array(order)))
