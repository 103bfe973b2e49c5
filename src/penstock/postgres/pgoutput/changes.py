"""Insert, Update and Delete messages of one table as rows: new tuples, old ones, keys; pure.

An update is one row, from its new tuple. When its key has changed it is two, a delete of the old
row and an insert of the new one: so it is for whoever knows rows by their key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.postgres.pgoutput.messages import (
    DELETE,
    INSERT,
    UPDATE,
    Bools,
    Ints,
    Messages,
    malformed,
)
from penstock.postgres.pgoutput.rows import Draft, Op, merge
from penstock.postgres.pgoutput.tuples import NULL, UNCHANGED, Cells, TupleWalk, text_column

_NEW, _OLD, _KEY = b"NOK"
# Kind byte, oid, tag, number of columns: no row is shorter.
_SMALLEST = 8
_TAG_AT = 5

_OP_OF_KIND = np.zeros(256, np.uint8)
_OP_OF_KIND[[INSERT, UPDATE, DELETE]] = [Op.INSERT, Op.UPDATE, Op.DELETE]

# Of each kind of message the tags that its first tuple may have.
_ALLOWED = np.zeros((256, 256), np.bool_)
_ALLOWED[INSERT, _NEW] = True
_ALLOWED[DELETE, [_OLD, _KEY]] = True
_ALLOWED[UPDATE, [_NEW, _OLD, _KEY]] = True


@dataclass(frozen=True)
class _OldTuples:
    """The old tuples of those updates that carry one."""

    # Which rows they are of.
    rows: Ints
    # K and not O: columns outside of the replica identity are null.
    is_key_only: Bools
    cells: list[Cells]


def check_changes(messages: Messages, numbers: Ints) -> None:
    """Check the fixed part of Insert, Update and Delete messages.

    Raises:
        WireError: one is too short or has a tuple that its kind does not have.
    """
    if (messages.ends[numbers] - messages.starts[numbers] < _SMALLEST).any():
        raise malformed("a change is shorter than any row")
    tags = messages.data[messages.starts[numbers] + _TAG_AT]
    if not _ALLOWED[messages.kinds[numbers], tags].all():
        raise malformed("a change holds a tuple that its kind does not have")


def change_rows(messages: Messages, numbers: Ints, width: int, key: tuple[int, ...]) -> Draft:
    """Read the rows of checked messages of one table with `width` columns.

    Args:
        messages: where they are.
        numbers: which they are.
        width: the number of the table's columns.
        key: the columns whose change makes an update a delete and an insert.

    Raises:
        WireError: a row is not as the protocol says.
    """
    ends = messages.ends[numbers]
    tuples_at = messages.starts[numbers] + _TAG_AT + 1
    old = _read_old(messages, numbers, tuples_at, width)
    walk = TupleWalk(messages.data, tuples_at, ends, width)
    columns: list[pa.StringArray] = []
    unchanged: list[Bools | None] = []
    for index in range(width):
        cells = walk.next_column()
        if old is not None:
            # A large value that did not change is not sent anew, but the old tuple may have it.
            cells = cells.filled(old.rows, old.cells[index])
        columns.append(text_column(messages, cells))
        unchanged.append(cells.unchanged())
    if (walk.positions != ends).any():
        raise malformed("a change is longer than its row")
    rows = Draft(
        numbers=numbers,
        halves=np.zeros(len(numbers), np.int64),
        op=_OP_OF_KIND[messages.kinds[numbers]],
        columns=columns,
        unchanged=unchanged,
    )
    if old is None or not key:
        return rows
    return _split_key_changes(messages, rows, old, key)


def _read_old(messages: Messages, numbers: Ints, tuples_at: Ints, width: int) -> _OldTuples | None:
    """Read the old tuples of updates; moves `tuples_at` on to the new ones there."""
    tags = messages.data[tuples_at - 1]
    rows = np.flatnonzero((messages.kinds[numbers] == UPDATE) & (tags != _NEW))
    if not len(rows):
        return None
    ends = messages.ends[numbers[rows]]
    walk = TupleWalk(messages.data, tuples_at[rows], ends, width)
    cells = [walk.next_column() for _ in range(width)]
    if (walk.positions >= ends).any() or (messages.data[walk.positions] != _NEW).any():
        raise malformed("an update has no new row after the old one")
    tuples_at[rows] = walk.positions + 1
    return _OldTuples(rows, tags[rows] == _KEY, cells)


def _split_key_changes(
    messages: Messages, rows: Draft, old: _OldTuples, key: tuple[int, ...]
) -> Draft:
    is_moved = np.zeros(len(old.rows), np.bool_)
    for index in key:
        is_moved |= _differs(messages, rows, old, index)
    moved = np.flatnonzero(is_moved)
    if not len(moved):
        return rows
    at = old.rows[moved]
    rows.op[at] = Op.INSERT
    rows.halves[at] = 1
    cells = [column.take(moved) for column in old.cells]
    deletes = Draft(
        numbers=rows.numbers[at],
        halves=np.zeros(len(at), np.int64),
        op=np.full(len(at), Op.DELETE, np.uint8),
        columns=[text_column(messages, column) for column in cells],
        unchanged=[column.unchanged() for column in cells],
    )
    return merge([rows, deletes])


def _differs(messages: Messages, rows: Draft, old: _OldTuples, index: int) -> Bools:
    """Tell in which updates with an old tuple a column has got another value."""
    before = text_column(messages, old.cells[index])
    after = rows.columns[index].take(pa.array(old.rows))
    differs: Bools = np.asarray(pc.fill_null(pc.not_equal(before, after), True))  # noqa: FBT003
    is_both_null = np.asarray(pc.and_(pc.is_null(before), pc.is_null(after)))
    # What one of the two does not tell cannot be called a change.
    kinds = old.cells[index].kinds
    is_unknown = (kinds == UNCHANGED) | ((kinds == NULL) & old.is_key_only)
    mask = rows.unchanged[index]
    if mask is not None:
        is_unknown |= mask[old.rows]
    is_change: Bools = differs & ~is_both_null & ~is_unknown
    return is_change
