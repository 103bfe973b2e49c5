"""The state of one read of a slot: relations, the open transaction; fed batch by batch.

Runs in the task that reads a slot; pure. Python loops only over tables and over messages that
are rare (Relation, Truncate, Type, Origin), never over rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator

import numpy as np
import pyarrow as pa

from penstock.postgres.pgoutput.changes import change_rows, check_changes
from penstock.postgres.pgoutput.messages import (
    IS_ROW,
    LOGICAL_MESSAGE,
    ORIGIN,
    RELATION,
    TRUNCATE,
    TYPE,
    Ints,
    Messages,
    malformed,
    read_messages,
    read_numbers,
)
from penstock.postgres.pgoutput.relations import (
    Relation,
    check_unused,
    parse_relation,
    parse_truncate,
)
from penstock.postgres.pgoutput.rows import RelationRows, merge, truncate_rows
from penstock.postgres.pgoutput.transactions import Stamps, Transactions

# Columns of so many rows stay in a core's cache from one step to the next, which makes the whole
# decoder twice as fast as batches of 100,000; it is also what Spark likes to get at a time.
_MOST_ROWS = 8192

_NONE = np.zeros(0, np.int64)

# Definitions of one table: each with the number of the message from which it holds.
_Definitions = list[tuple[int, Relation | None]]


_IS_DEFINITION = np.zeros(256, np.bool_)
_IS_DEFINITION[[RELATION, TYPE, ORIGIN, LOGICAL_MESSAGE]] = True


def _every_relation(_relation: Relation) -> bool:
    return True


def _no_primary_key(_relation: Relation) -> Collection[str]:
    return ()


class Decoder:
    """Turns batches of pgoutput messages into rows, table by table."""

    def __init__(
        self,
        start_lsn: int,
        end_lsn: int,
        wanted: Callable[[Relation], bool] = _every_relation,
        primary_key: Callable[[Relation], Collection[str]] = _no_primary_key,
    ) -> None:
        """Prepare to read the transactions whose commit record starts in [start_lsn, end_lsn).

        Args:
            start_lsn: the first position of the range.
            end_lsn: the first position after it.
            wanted: whether rows of a table are needed. Called once for each definition of a table
                that rows within the range have; what it raises reaches the caller.
            primary_key: the names of a table's key columns. Asked only where the replica identity
                is FULL, because all others say it in the stream; without it an update is never a
                change of key there.
        """
        self._transactions = Transactions(start_lsn, end_lsn)
        self._wanted = wanted
        self._primary_key = primary_key
        # Of each oid the definition that holds at the end of what was fed.
        self._relations: dict[int, Relation] = {}
        # Of each definition in use its key columns; None if it is not wanted.
        self._keys: dict[Relation, tuple[int, ...] | None] = {}

    def feed(self, batch: pa.RecordBatch) -> list[RelationRows]:
        """Take the next batch: a column `data`, in the order of the slot.

        Gives rows so that each table's are in commit order, over all calls too.

        Raises:
            WireError: the bytes are not pgoutput of protocol version 1 with text values.
        """
        return [rows for messages in read_messages(batch) for rows in self._feed(messages)]

    def finish(self) -> None:
        """Say that there are no more batches.

        Raises:
            WireError: a transaction is not complete.
        """
        if self._transactions.is_open:
            raise malformed("the changes end in the middle of a transaction")

    def _feed(self, messages: Messages) -> Iterator[RelationRows]:
        stamps = self._transactions.stamp(messages)
        redefined = self._read_relations(messages)
        truncates = _read_truncates(messages, stamps)
        changes = np.flatnonzero(stamps.is_kept & IS_ROW[messages.kinds])
        check_changes(messages, changes)
        by_oid = _group(messages, changes)
        for oid in dict.fromkeys([*by_oid, *truncates]):
            numbers, emptied = by_oid.get(oid, _NONE), truncates.get(oid, _NONE)
            definitions = redefined.get(oid) or [(0, self._relations.get(oid))]
            for relation, some, some_emptied in _pieces(numbers, emptied, definitions):
                if relation is None:
                    raise malformed(f"a change is of the unknown table with oid {oid}")
                key = self._key(relation)
                if key is None:
                    continue
                width = len(relation.columns)
                rows = truncate_rows(some_emptied, width)
                if len(some):
                    rows = merge([change_rows(messages, some, width, key), rows])
                yield rows.stamped(relation, stamps)

    def _read_relations(self, messages: Messages) -> dict[int, _Definitions]:
        """Read the rare messages; give the tables whose definition changes among them."""
        redefined: dict[int, _Definitions] = {}
        for number in np.flatnonzero(_IS_DEFINITION[messages.kinds]).tolist():
            if messages.kinds[number] != RELATION:
                check_unused(messages, number)
                continue
            relation = parse_relation(messages.body(number))
            before = self._relations.get(relation.oid)
            # The server repeats a definition whenever its caches were invalidated.
            if relation != before:
                redefined.setdefault(relation.oid, [(0, before)]).append((number, relation))
                self._relations[relation.oid] = relation
        return redefined

    def _key(self, relation: Relation) -> tuple[int, ...] | None:
        if relation not in self._keys:
            self._keys[relation] = None
            if self._wanted(relation):
                self._keys[relation] = relation.key_indexes(self._primary_key(relation))
        return self._keys[relation]


def _read_truncates(messages: Messages, stamps: Stamps) -> dict[int, Ints]:
    """Give the numbers of the Truncate messages that name a table, for each such table."""
    by_oid: dict[int, list[int]] = {}
    for number in np.flatnonzero(stamps.is_kept & (messages.kinds == TRUNCATE)).tolist():
        for oid in dict.fromkeys(parse_truncate(messages.body(number))):
            by_oid.setdefault(oid, []).append(number)
    return {oid: np.array(numbers, np.int64) for oid, numbers in by_oid.items()}


def _group(messages: Messages, changes: Ints) -> dict[int, Ints]:
    """Sort checked changes by table, each table's in the order of the stream."""
    if not len(changes):
        return {}
    oids = read_numbers(messages.data, messages.starts[changes] + 1, 4)
    if (oids == oids[0]).all():
        return {int(oids[0]): changes}
    order = np.argsort(oids, kind="stable")
    tables, firsts = np.unique(oids[order], return_index=True)
    groups = np.split(changes[order], firsts[1:])
    return dict(zip(tables.tolist(), groups, strict=True))


def _pieces(
    numbers: Ints, truncates: Ints, definitions: _Definitions
) -> Iterator[tuple[Relation | None, Ints, Ints]]:
    """Cut a table's messages where its definition changes, and into handy sizes."""
    for index, (first, relation) in enumerate(definitions):
        end = definitions[index + 1][0] if index + 1 < len(definitions) else np.iinfo(np.int64).max
        some, emptied = _between(numbers, first, end), _between(truncates, first, end)
        cuts = [first, *some[_MOST_ROWS::_MOST_ROWS].tolist(), end]
        for start, stop in itertools.pairwise(cuts):
            piece = _between(some, start, stop), _between(emptied, start, stop)
            if len(piece[0]) or len(piece[1]):
                yield relation, *piece


def _between(numbers: Ints, first: int, end: int) -> Ints:
    low, high = np.searchsorted(numbers, [first, end])
    return numbers[low:high]
