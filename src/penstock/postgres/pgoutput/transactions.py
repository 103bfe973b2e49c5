"""Which transaction each message belongs to, over any number of batches; pure.

Begin carries all that a row needs: the LSN where the commit record starts, the commit time, the
xid. The same LSN is what `confirmed_flush_lsn` is compared with, so it alone decides whether a
transaction belongs to a range of offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.postgres.pgoutput.messages import (
    BEGIN,
    COMMIT,
    IS_CHANGE,
    Bools,
    Bytes,
    Ints,
    Messages,
    malformed,
    read_numbers,
)

# From 1970-01-01 to 2000-01-01, where PostgreSQL counts from.
_EPOCH_US = 946_684_800_000_000

_BEGIN_SIZE = 21
_COMMIT_SIZE = 26


@dataclass(frozen=True)
class Stamps:
    """What transactions give to the messages of one batch."""

    # Of each message: its transaction in the arrays below, and its place among the changes there.
    transaction: Ints
    place: Ints
    # Whether the message is a change of a transaction within the range.
    is_kept: Bools
    # Of each transaction.
    lsn: npt.NDArray[np.uint64]
    commit_time_us: Ints
    xid: Ints


class Transactions:
    """Follows Begin and Commit; holds the transaction that a batch left open."""

    def __init__(self, start_lsn: int, end_lsn: int) -> None:
        self._start_lsn = np.uint64(start_lsn)
        self._end_lsn = np.uint64(end_lsn)
        self.is_open = False
        # Of the open transaction: LSN (two's complement), commit time, xid; changes so far.
        self._current = (0, 0, 0)
        self._change_count = 0

    def stamp(self, messages: Messages) -> Stamps:
        """Take the next messages.

        Raises:
            WireError: Begin, changes and Commit do not follow each other as they must.
        """
        kinds = messages.kinds
        is_begin = kinds == BEGIN
        is_change = IS_CHANGE[kinds]
        begins = np.flatnonzero(is_begin)
        commits = np.flatnonzero(kinds == COMMIT)
        self._check_order(kinds, is_begin, is_change)
        _check_size(messages, begins, _BEGIN_SIZE, "Begin")
        _check_size(messages, commits, _COMMIT_SIZE, "Commit")

        lsn, commit_time_us, xid = self._read_begins(messages, begins)
        # Entry 0 is the transaction that was open before, if any.
        transaction = np.cumsum(is_begin)
        _check_commits(messages, commits, lsn[transaction[commits]])
        change_count = np.cumsum(is_change)
        before = np.concatenate(([-self._change_count], change_count[begins]))
        unsigned = lsn.view(np.uint64)
        is_in_range = (unsigned >= self._start_lsn) & (unsigned < self._end_lsn)

        self.is_open = self.is_open ^ bool((len(begins) + len(commits)) % 2)
        self._current = (int(lsn[-1]), int(commit_time_us[-1]), int(xid[-1]))
        self._change_count = int(change_count[-1] - before[-1])
        return Stamps(
            transaction=transaction,
            place=change_count - 1 - before[transaction],
            is_kept=is_change & is_in_range[transaction],
            lsn=unsigned,
            commit_time_us=commit_time_us,
            xid=xid,
        )

    def _read_begins(self, messages: Messages, begins: Ints) -> tuple[Ints, Ints, Ints]:
        at = messages.starts[begins] + 1
        lsn, time, xid = self._current
        if not len(begins):
            return np.array([lsn]), np.array([time]), np.array([xid])
        times = read_numbers(messages.data, at + 8, 8) + _EPOCH_US
        return (
            np.concatenate(([lsn], read_numbers(messages.data, at, 8))),
            np.concatenate(([time], times)),
            np.concatenate(([xid], read_numbers(messages.data, at + 16, 4))),
        )

    def _check_order(self, kinds: Bytes, is_begin: Bools, is_change: Bools) -> None:
        edges = np.flatnonzero(is_begin | (kinds == COMMIT))
        # They alternate, and it is a Commit's turn when a transaction is open.
        if (is_begin[edges] != ((np.arange(len(edges)) + self.is_open) % 2 == 0)).any():
            raise malformed("Begin and Commit messages do not alternate")
        edge_count = np.cumsum(is_begin | (kinds == COMMIT)) + self.is_open
        if (is_change & (edge_count % 2 == 0)).any():
            raise malformed("a change is outside of any transaction")


def _check_size(messages: Messages, numbers: Ints, size: int, what: str) -> None:
    if (messages.ends[numbers] - messages.starts[numbers] != size).any():
        raise malformed(f"a {what} message is not {size} bytes long")


def _check_commits(messages: Messages, commits: Ints, lsns: Ints) -> None:
    if len(commits):
        committed = read_numbers(messages.data, messages.starts[commits] + 2, 8)
        if (committed != lsns).any():
            raise malformed("a Commit message is of another transaction than the Begin before it")
