"""Runs a CDC reader the way Spark's micro-batch execution does, without a JVM, and lets it crash.

What survives a crash is what Spark keeps in a checkpoint: planned offsets and finished batches; and
the sink, which like any that knows batches replaces one that is run again.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import psycopg
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.postgres.batch import schema_of
from penstock.postgres.options import PostgresCdcOptions
from penstock.postgres.source.reader import PostgresStreamReader

Row = dict[str, Any]
# Where a run can be broken off: after the offset is in the log; when the rows are read and not in
# the sink; when they are in the sink and the batch is not in the commit log.
CRASHES = ("planned", "read", "written")


class CrashError(Exception):
    """The driver is gone."""


class Stream:
    """A query with its checkpoint and its sink."""

    def __init__(self, url: str, table: str = "public.orders", **options: str) -> None:
        self.raw = {"url": url, "table": table, "retryTimeout": "20s", **options}
        # Spark's two logs, and the sink: batch -> rows.
        self.offsets: list[dict[str, Any]] = []
        self.done = -1
        self.sink: dict[int, list[Row]] = {}
        self.reader: PostgresStreamReader | None = None
        # Where the first batch begins: in no log, so each run asks for it until that is done.
        self._first: dict[str, Any] | None = None

    @property
    def options(self) -> PostgresCdcOptions:
        return PostgresCdcOptions.parse(self.raw)

    def start(self, *, is_draining: bool = False) -> PostgresStreamReader:
        """Start the query: load() and the reader, in a process of its own."""
        schema = schema_of(self.options)
        self.reader = PostgresStreamReader(self.options, schema)
        self._first = None
        if is_draining:
            self.reader.prepareForTriggerAvailableNow()
        return self.reader

    def crash(self) -> None:
        """End the driver: connections break, nothing is told to anybody."""
        if self.reader is not None and self.reader._opened is not None:
            self.reader._opened.close()
        self.reader = None

    def step(self, crash_at: str | None = None) -> list[Row] | None:
        """Run one batch; None if there is nothing to do.

        Raises:
            CrashError: at the given moment.
        """
        reader = self.reader or self.start()
        if self.done == len(self.offsets) - 1:
            start = self.offsets[-1] if self.offsets else self._begin(reader)
            end = _stored(reader.latestOffset(start, ReadAllAvailable()))
            if end == start:
                return None
            self.offsets.append(end)
            # Spark tells the source of a committed batch when the next one is in the log.
            if len(self.offsets) > 1:
                reader.commit(self.offsets[-2])
        self._break(crash_at, "planned")
        number = len(self.offsets) - 1
        start = self.offsets[number - 1] if number else self._begin(reader)
        rows: list[Row] = []
        for partition in reader.partitions(start, self.offsets[number]):
            for batch in reader.read(to_executor(partition)):
                assert batch.num_rows
                rows += batch.to_pylist()
        self._break(crash_at, "read")
        self.sink[number] = rows
        self._break(crash_at, "written")
        self.done = number
        return rows

    def _begin(self, reader: PostgresStreamReader) -> dict[str, Any]:
        if self._first is None:
            self._first = _stored(reader.initialOffset())
        return self._first

    def _break(self, crash_at: str | None, here: str) -> None:
        if crash_at == here:
            self.crash()
            raise CrashError(here)

    def run(self, most: int = 50) -> list[Row]:
        """Run batches until there is nothing to do; gives their rows."""
        found: list[Row] = []
        for _ in range(most):
            rows = self.step()
            if rows is None:
                return found
            found += rows
        raise AssertionError(f"more than {most} batches")

    @property
    def rows(self) -> list[Row]:
        """All that the sink has, in the order of batches."""
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def table(self, *key: str) -> dict[tuple[Any, ...], Row]:
        """Rebuild the table from the stream: by key, what the source should have."""
        return rebuild(self.rows, *key)


def to_executor(partition: InputPartition) -> InputPartition:
    """Send a partition as Spark does."""
    sent: InputPartition = pickle.loads(pickle.dumps(partition))  # noqa: S301 - our own
    return sent


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(offset))
    return value


def rebuild(rows: list[Row], *key: str) -> dict[tuple[Any, ...], Row]:
    """Apply changes in their order: (LSN, ordinal)."""
    state: dict[tuple[Any, ...], Row] = {}
    removed: Row = {}
    for row in sorted(rows, key=lambda row: (row["_lsn"], row["_ordinal"])):
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        at = tuple(values[name] for name in key)
        match row["_op"]:
            case "truncate":
                state.clear()
            case "delete":
                removed = state.pop(at, {})
            case "update":
                kept = {name: state[at][name] for name in row["_unchanged"]}
                state[at] = {**values, **kept}
            case _:
                # A changed key is a delete and an insert: what did not change is in the row before.
                kept = {name: removed[name] for name in row["_unchanged"]}
                state[at] = {**values, **kept}
    return state


def source_table(
    connection: psycopg.Connection[Any], table: str, *key: str
) -> dict[tuple[Any, ...], Row]:
    """Read the table itself, by key."""
    cursor = connection.execute(f"SELECT * FROM {table}")  # noqa: S608 - a test's own name
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    found = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    return {tuple(row[name] for name in key): row for row in found}
