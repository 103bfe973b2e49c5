"""The writers that Spark sees: checks on the driver, rows in workers, the merge at the commit.

Never holds a connection or a key: the writer is pickled on its way to the tasks.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock._core.workers import ease_collection
from penstock.errors import CheckpointError, OptionError
from penstock.snowflake.connection import connected
from penstock.snowflake.merge.apply import apply_merge
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.preflight import Plans, plans_for
from penstock.snowflake.sink.deadline import within
from penstock.snowflake.sink.pool import POOL
from penstock.snowflake.sink.task import TaskPlace, write_partition

_log = logging.getLogger(__name__)
# Local properties that Spark's micro-batches set for their tasks.
_BATCH_KEY = "streaming.sql.batchId"
_QUERY_KEY = "sql.streaming.queryId"


@dataclass(frozen=True)
class SnowpipeCommitMessage(WriterCommitMessage):
    """What one task has written; picklable."""

    batch: int = 0
    partition: int = 0
    channel: str = ""
    rows: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    refused: int = 0
    is_snapshot: bool = False


class _SnowpipeWriter:
    """What the streaming and the batch writer share."""

    def __init__(self, options: SnowpipeOptions, schema: StructType) -> None:
        self._options = options
        self._plans: Plans = plans_for(options, schema)

    def _write(self, place: TaskPlace, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            # No channel is opened for nothing.
            return SnowpipeCommitMessage(place.batch, place.partition)
        ease_collection()
        place = replace(place, snapshot_lsn=self._snapshot_lsn(first))
        totals = write_partition(
            self._options, self._plans.sink, place, itertools.chain([first], filled)
        )
        return SnowpipeCommitMessage(
            place.batch,
            place.partition,
            place.channel,
            **asdict(totals),
            is_snapshot=place.snapshot_lsn is not None,
        )

    def _snapshot_lsn(self, first: pa.RecordBatch) -> int | None:
        """Tell which snapshot rows are of; a change stream gives those of one in one batch."""
        if not self._options.merge:
            return None
        prefix = self._options.meta_prefix
        op, lsn = (first.column(prefix + name)[0].as_py() for name in ("op", "lsn"))
        return lsn if op == "snapshot" else None

    def _apply(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Check that every task has written its part of this batch, and merge."""
        written = [message for message in messages if isinstance(message, SnowpipeCommitMessage)]
        if len(written) != len(messages) or any(message.batch != batch for message in written):
            raise CheckpointError(
                "COMMIT_INCOMPLETE",
                f"Batch {batch} of table {self._plans.sink.table}",
                f"{len(messages)} tasks, but {len(written)} of them have written it",
                "This should not happen: report it with this text; the batch is run again",
            )
        rows = sum(message.rows for message in written)
        refused = sum(message.refused for message in written)
        if refused:
            _log.warning(
                "batch %d: the service left out %d rows of table %s; see ERROR_TABLE",
                batch,
                refused,
                self._plans.sink.table,
            )
        if self._plans.merge is None or not rows:
            return
        # A task cannot tell when a snapshot is complete, and leaves its rows to us.
        if self._options.merge_schedule is not None and not any(m.is_snapshot for m in written):
            return
        with connected(self._options) as connection:
            result = apply_merge(
                connection,
                self._plans.merge,
                batch_row_count=rows,
                timeout_seconds=max(600.0, self._options.flush_timeout),
            )
        _log.info("batch %d: merged %d landed rows", batch, result.row_count)


class SnowpipeStreamWriter(_SnowpipeWriter, DataSourceStreamArrowWriter):
    """Writes micro-batches. Spark makes one on the driver for each, and pickles it to the tasks."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition. Called by Spark in a worker, once per task attempt.

        Raises:
            PenstockError: a row or the service stands in the way; the task has failed.
        """
        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH_KEY) if context is not None else None
        query = context.getLocalProperty(_QUERY_KEY) if context is not None else None
        stream = self._options.channel_prefix or (query and f"penstock_{query}")
        if context is None or batch is None or stream is None:
            raise OptionError(
                "NO_BATCH_ID",
                self._options.USE,
                "this is not a micro-batch: Spark has told the task no batch id",
                "Use it with writeStream and a trigger that makes micro-batches",
            )
        return self._write(TaskPlace(stream, int(batch), context.partitionId()), iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's
    ) -> None:
        """End a batch. Called by Spark on the driver when all tasks have succeeded."""
        self._apply(messages, batchId)


class SnowpipeBatchWriter(_SnowpipeWriter, DataSourceArrowWriter):
    """Writes a DataFrame once, through channels of its own that are dropped at the end."""

    def __init__(self, options: SnowpipeOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._stream = f"penstock_write_{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition. Called by Spark in a worker, once per task attempt."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        place = TaskPlace(self._stream, 0, partition, is_lasting=False)
        return self._write(place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the write. Called by Spark on the driver when all tasks have succeeded."""
        try:
            self._apply(messages, 0)
        finally:
            self._drop_channels(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """End a write that has failed; rows that are committed stay, as Spark's users know it."""
        self._drop_channels(messages)

    def _drop_channels(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the channels of all partitions that may have opened one."""
        parts = [
            TaskPlace(self._stream, 0, number).channel
            for number, message in enumerate(messages)
            if not isinstance(message, SnowpipeCommitMessage) or message.channel
        ]
        if not parts:
            return
        options = self._options
        tables = {options.written: parts}
        if options.dead_letter is not None:
            tables[options.dead_letter] = [f"{name}_LETTERS" for name in parts]
        for table, names in tables.items():
            # A channel that is left costs nothing but its name; the rows are what counts.
            with contextlib.suppress(Exception):
                pooled = POOL.take(options, table)
                for name in names:
                    with contextlib.suppress(Exception):
                        within(
                            options.connect_timeout,
                            f"Channel '{name}'",
                            functools.partial(pooled.client.drop_channel, name),
                        )
                POOL.discard(options, table, pooled)
