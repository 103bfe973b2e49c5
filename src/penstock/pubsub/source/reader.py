"""The streaming source; plans on the driver, reads in workers.

Spark builds one reader per query run in a driver process of its own, and pickles partitions to the
tasks. The reader owns the coordinator; tasks find their executor's agent through the partition.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import SchemaError
from penstock.pubsub.client import PubSubClient
from penstock.pubsub.source.agents import Overview
from penstock.pubsub.source.metrics import measure
from penstock.pubsub.source.offsets import PubSubOffset
from penstock.pubsub.source.options import PubSubSourceOptions
from penstock.pubsub.source.planning import Planning
from penstock.pubsub.source.subscription import seek_to_start
from penstock.pubsub.source.task import PubSubPartition, read_partition

_LOG = logging.getLogger(__name__)
_UNLIMITED = 2**62
# Until executors have told how many cores they have.
_FIRST_PARTITIONS = 8
# Without any agent, a batch is planned this often to start one: all executors may be gone.
_BOOTSTRAP_SECONDS = 5.0
# Draining ends when no message has come for so long on open streams.
_QUIET_SECONDS = 2.0
# Agents tell how things stand several times a second; an agent that is gone tells nothing.
_LOOK_SECONDS = 0.5
_SETTLE_SECONDS = 30.0


class PubSubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One run of one query."""

    def __init__(
        self, options: PubSubSourceOptions, raw: dict[str, str], schema: StructType
    ) -> None:
        if schema.fieldNames() != options.columns.names:
            raise SchemaError(
                "SCHEMA_FIXED",
                f"The schema {schema.simpleString()}",
                f"a stream of Pub/Sub has the columns: {options.columns.ddl}",
                "Leave out .schema(...), and select from the payload after the load",
            )
        self._options = options
        # Agents get the options as they were given, with the endpoint that the driver has found.
        self._raw = raw if options.endpoint is None else {**raw, "endpoint": options.endpoint}
        # Spark builds the reader twice, and pickles one to the tasks: only the one that plans
        # batches gets a coordinator.
        self._planning: Planning | None = None

    @property
    def _plan(self) -> Planning:
        if self._planning is None:
            self._planning = Planning(self._options, self._raw)
        return self._planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Called once, and only for a query without a checkpoint.

        Raises:
            PenstockError: the subscription cannot be read from, or not from there.
        """
        self._plan.check_fatal()
        self._plan.know_offset(PubSubOffset(0))
        with closing(PubSubClient(self._options)) as client:
            seek_to_start(client, self._options)
        return PubSubOffset(0, 0, self._plan.config.spool).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Called once, before the first batch."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Called once when the query shall only drain what is there."""
        self._plan.start_draining()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Called before each batch, and again and again while there is nothing to do.

        Raises:
            AgentError: an agent cannot go on.
        """
        del limit
        offset = PubSubOffset.from_json(start)
        self._plan.know_offset(offset)
        while True:
            self._plan.check_fatal()
            decision = self._decide(offset.tick)
            if decision is not None:
                return (self._next(offset) if decision else offset).to_json()
            self._plan.coordinator.wait_for_change(_LOOK_SECONDS)

    def _next(self, offset: PubSubOffset) -> PubSubOffset:
        if self._plan.config.spool is None:
            return PubSubOffset(offset.tick + 1)
        # Fixed here, because a batch that is run again must have the same tasks.
        overview = self._plan.coordinator.overview()
        return PubSubOffset(offset.tick + 1, self._count(overview), self._plan.config.spool)

    def _decide(self, tick: int) -> bool | None:
        """Whether to plan a batch now; None: wait here, because Spark would end the query."""
        overview = self._plan.coordinator.overview(tick)
        status = overview.status
        now = time.monotonic()
        if overview.agents == 0:
            is_due = (
                self._plan.bootstrapped_at is None
                or now - self._plan.bootstrapped_at > _BOOTSTRAP_SECONDS
            )
            if is_due:
                self._plan.bootstrapped_at = now
                return True
            return None if self._plan.is_draining else False
        if status.buffered_rows and self._is_full_enough(status.buffered_rows, now):
            self._plan.waiting_since = None
            return True
        if status.buffered_rows:
            return False
        if self._plan.is_draining and not (
            status.streams and status.quiet_seconds > _QUIET_SECONDS
        ):
            return None
        # Spark commits a batch when it plans the next one. One empty batch after the last with
        # rows carries that commit; after it there is nothing to do, and no job runs.
        return overview.rows > 0

    def _is_full_enough(self, rows: int, now: float) -> bool:
        least = self._options.min_rows_per_trigger
        if least is None or rows >= least or self._plan.is_draining:
            return True
        if self._plan.waiting_since is None:
            self._plan.waiting_since = now
        return now - self._plan.waiting_since >= self._options.max_trigger_delay

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called once per batch; also for a batch of the checkpoint that is run again."""
        del start
        offset = PubSubOffset.from_json(end)
        self._plan.know_offset(offset)
        overview = self._plan.coordinator.overview(offset.tick)
        count = self._count(overview) if offset.partitions is None else offset.partitions
        rows, size = self._options.max_rows_per_trigger, self._options.max_bytes_per_trigger
        most_per_task = self._options.max_records_per_fetch or _UNLIMITED
        return [
            PubSubPartition(
                config=self._plan.config,
                columns=self._options.columns,
                tick=offset.tick,
                index=index,
                most_rows=min(_share(rows, count, index), most_per_task),
                most_bytes=_share(size, count, index),
                tasks=-(-count // max(1, overview.agents)),
            )
            for index in range(count)
        ]

    def _count(self, overview: Overview) -> int:
        """Choose the number of tasks of the next batch; none if there is nothing to read."""
        if overview.agents and not overview.status.buffered_rows:
            return 0
        count = self._partition_count(overview.cores)
        rows = self._options.max_rows_per_trigger
        return count if rows is None else min(count, rows)

    def _partition_count(self, cores: int) -> int:
        """Twice the cores, so that a slow task does not leave others idle; never more."""
        most = 2 * cores or max(_FIRST_PARTITIONS, 2 * (os.cpu_count() or 1))
        wanted = self._options.num_partitions
        if wanted is None or not cores:
            return wanted or most
        if wanted > most and not self._plan.has_warned:
            self._plan.has_warned = True
            _LOG.warning(
                "numPartitions %d is more than twice the executors' %d cores; using %d",
                wanted,
                cores,
                most,
            )
        return min(wanted, most)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in a worker, once per task attempt.

        Raises:
            AgentError: the agent does not start, or cannot go on.
        """
        assert isinstance(partition, PubSubPartition)  # noqa: S101 - made above
        return read_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the batch up to `end` is in the sink and in Spark's commit log."""
        tick = PubSubOffset.from_json(end).tick
        self._plan.coordinator.commit(tick, self._options.ack_ttl_batches)
        if self._plan.is_draining:
            # The query may end right after: then the agents must have acknowledged.
            self._plan.coordinator.wait_settled(_SETTLE_SECONDS)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Called for every progress report: the source's measurements."""
        return measure(self._plan.coordinator.overview())

    def stop(self) -> None:
        """Called when Spark ends this process in order; agents notice a hard end by themselves."""
        if self._planning is not None:
            self._planning.coordinator.stop()


def _share(total: int | None, count: int, index: int) -> int:
    if total is None:
        return _UNLIMITED
    return max(1, total // count + (index < total % count))
