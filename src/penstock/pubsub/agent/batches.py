"""Joining small batches into larger ones; pure. Runs in the agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

# Spark takes batches of about this size fastest; responses of the service are smaller.
_ROWS = 8192


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join consecutive batches until they are large enough."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS:
            yield _join(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
