"""What the decoder gives: rows of one table, in columns; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.postgres.pgoutput.messages import Bools, Bytes, Ints
from penstock.postgres.pgoutput.relations import Relation
from penstock.postgres.pgoutput.transactions import Stamps


class Op(IntEnum):
    """What happened to a row."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    TRUNCATE = 3


@dataclass(frozen=True)
class RelationRows:
    """Rows of one definition of one table, in commit order; (lsn, ordinal) never repeats."""

    relation: Relation
    # Values of `Op`.
    op: Bytes
    # Where the commit record starts.
    lsn: npt.NDArray[np.uint64]
    ordinal: Ints
    # Since 1970-01-01 UTC.
    commit_time_us: Ints
    xid: Ints
    # Of each column the text; null for NULL and for what was not sent.
    columns: list[pa.StringArray]
    # Of each column which values did not change and were not sent; None: there are none.
    unchanged: list[Bools | None]

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True)
class Draft:
    """Rows that know their message but not yet their transaction."""

    # The message that a row comes from, and which half of it: 1 is the insert of a key change.
    numbers: Ints
    halves: Ints
    op: Bytes
    columns: list[pa.StringArray]
    unchanged: list[Bools | None]

    def stamped(self, relation: Relation, stamps: Stamps) -> RelationRows:
        """Add what the transactions know."""
        of = stamps.transaction[self.numbers]
        return RelationRows(
            relation=relation,
            op=self.op,
            lsn=stamps.lsn[of],
            # Even for a whole message, so that the second half of one has room after the first.
            ordinal=stamps.place[self.numbers] * 2 + self.halves,
            commit_time_us=stamps.commit_time_us[of],
            xid=stamps.xid[of],
            columns=self.columns,
            unchanged=self.unchanged,
        )


def truncate_rows(numbers: Ints, width: int) -> Draft:
    """Make one row without values for each Truncate message."""
    count = len(numbers)
    return Draft(
        numbers=numbers,
        halves=np.zeros(count, np.int64),
        op=np.full(count, Op.TRUNCATE, np.uint8),
        columns=[pa.nulls(count, pa.string())] * width,
        unchanged=[None] * width,
    )


def merge(drafts: Sequence[Draft]) -> Draft:
    """Put drafts of one table together, in the order of the stream."""
    drafts = [draft for draft in drafts if len(draft.numbers)] or drafts[:1]
    if len(drafts) == 1:
        return drafts[0]
    numbers = np.concatenate([draft.numbers for draft in drafts])
    halves = np.concatenate([draft.halves for draft in drafts])
    order = np.argsort(numbers * 2 + halves, kind="stable")
    indexes = pa.array(order)
    width = len(drafts[0].columns)
    return Draft(
        numbers=numbers[order],
        halves=halves[order],
        op=np.concatenate([draft.op for draft in drafts])[order],
        columns=[
            pa.concat_arrays([draft.columns[index] for draft in drafts]).take(indexes)
            for index in range(width)
        ],
        unchanged=[_merge_masks(drafts, index, order) for index in range(width)],
    )


def _merge_masks(drafts: Sequence[Draft], index: int, order: Ints) -> Bools | None:
    masks = [draft.unchanged[index] for draft in drafts]
    if all(mask is None for mask in masks):
        return None
    filled = [
        np.zeros(len(draft.numbers), np.bool_) if mask is None else mask
        for draft, mask in zip(drafts, masks, strict=True)
    ]
    merged: Bools = np.concatenate(filled)[order]
    return merged
