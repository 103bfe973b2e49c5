"""The streaming source; plans on the driver, reads in workers.

Spark builds one reader per query run in a driver process of its own, and pickles partitions to the
tasks. The reader owns the coordinator; tasks find their executor's agent through the partition.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock._core.workers import ease_collection
from penstock.errors import AgentError, ConnectError, ResourceError, SchemaError
from penstock.pubsub.agent.config import AgentConfig
from penstock.pubsub.agent.launcher import agent_client
from penstock.pubsub.agent.server import Fetch, delivery_number
from penstock.pubsub.client import PubSubClient
from penstock.pubsub.source.columns import Columns
from penstock.pubsub.source.coordinator import Coordinator, Overview
from penstock.pubsub.source.metrics import MetricsServer, measure, render
from penstock.pubsub.source.offsets import PubSubOffset
from penstock.pubsub.source.options import PubSubSourceOptions
from penstock.pubsub.source.spool_keeper import SpoolKeeper, refuse_without_spool
from penstock.pubsub.source.subscription import delete, prepare, seek_to_start
from penstock.pubsub.spool.store import SpoolStore

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
# The process ends after so long, whatever stands in the way of an orderly end.
_STOP_SECONDS = 15.0


@dataclass
class PubSubPartition(InputPartition):
    """One task's part of one batch; picklable."""

    config: AgentConfig
    columns: Columns
    tick: int
    index: int
    most_rows: int
    most_bytes: int
    tasks: int


class _Planning:
    """What the driver's reader has and the tasks' copies have not."""

    def __init__(self, options: PubSubSourceOptions, raw: dict[str, str]) -> None:
        self._options = options
        with closing(PubSubClient(options)) as client:
            is_ordered = prepare(client, options)
        self.spool = (
            SpoolKeeper(
                SpoolStore(options.spool_location), options.subscription, options.suspect_duration
            )
            if options.spool_location is not None
            else None
        )
        # A lease that nobody prolongs has half of its time left at least: an agent that is gone is
        # noticed, and the others have learnt what it may have left, before its messages come again.
        self.coordinator = Coordinator(
            spool=self.spool, silence_seconds=max(2.0, options.lease_duration / 6)
        )
        self.coordinator.start()
        host = options.coordinator_host or _own_address()
        self.config = AgentConfig(
            run=uuid.uuid4().hex,
            subscription=options.subscription,
            coordinator=f"{host}:{self.coordinator.port}",
            is_ordered=is_ordered,
            options=raw,
            token=self.coordinator.token,
        )
        self.bootstrapped_at: float | None = None
        self.waiting_since: float | None = None
        self.is_draining = False
        self.has_warned = False
        if options.metrics_port is not None:
            self._serve_metrics(options.metrics_port)
        # Spark ends this process with SIGTERM when the query is stopped.
        signal.signal(signal.SIGTERM, self._on_stop)
        if self.spool is None:
            _LOG.warning(
                "at-least-once: messages of %s are acknowledged after Spark's commit, and can come "
                "again after a failure",
                options.subscription,
            )

    def _serve_metrics(self, port: int) -> None:
        def text() -> str:
            return render(measure(self.coordinator.overview()), self._options.subscription)

        try:
            server = MetricsServer(port, text)
        except OSError as exc:
            raise ConnectError(
                "METRICS_PORT",
                f"Port {port} of option 'metricsPort'",
                f"cannot be listened on ({exc.strerror})",
                "Choose another one; 0 takes a free one",
            ) from None
        _LOG.warning("metrics of %s on port %d", self._options.subscription, server.port)

    def check_fatal(self) -> None:
        """Raise what stops the query: an agent's error, or more streams than allowed."""
        self.coordinator.raise_fatal()
        agents = self.coordinator.overview().agents
        streams = agents * self._options.streams_per_executor
        if streams > self._options.stream_quota:
            raise ResourceError(
                "STREAM_QUOTA",
                f"Subscription '{self._options.subscription}'",
                f"{agents} executors open {streams} streams, and streamQuota is "
                f"{self._options.stream_quota}",
                "Lower streamsPerExecutor, use fewer executors, or raise streamQuota",
            )

    def know_offset(self, offset: PubSubOffset) -> None:
        """Open what belongs to the query's offset; again and again does nothing more.

        Raises:
            PenstockError: the query cannot go on from there.
        """
        if self.spool is None:
            refuse_without_spool(offset)
        elif self.config.spool is None:
            self.config = replace(self.config, spool=self.spool.open(offset))

    def start_draining(self) -> None:
        """Hand out only what was published up to now."""
        self.is_draining = True
        self.config = replace(self.config, cutoff_us=int(time.time() * 1e6))

    def _on_stop(self, number: int, frame: object) -> None:
        """Spark ends the query. In a thread of its own: this one may hold a lock right now."""
        del number, frame
        # Spark may send it again.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Not a daemon: the process must not end before it.
        threading.Thread(target=self._end, name="penstock-stop").start()
        end = threading.Timer(_STOP_SECONDS, os._exit, (1,))
        end.daemon = True
        end.start()

    def _end(self) -> None:
        self.coordinator.stop()
        if self._options.delete_subscription_on_stream_stop:
            with closing(PubSubClient(self._options)) as client:
                delete(client, self._options.subscription)
        os._exit(0)


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
        self._planning: _Planning | None = None

    @property
    def _plan(self) -> _Planning:
        if self._planning is None:
            self._planning = _Planning(self._options, self._raw)
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
        return _read(partition)

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


def _own_address() -> str:
    """Find the address by which executors reach this machine, as Spark itself does."""
    given = os.environ.get("SPARK_LOCAL_IP") or os.environ.get("SPARK_DRIVER_BIND_ADDRESS")
    if given and given not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return given
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
    return address


def _read(partition: PubSubPartition) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    client = agent_client(replace(partition.config, parent=os.getppid()))
    ease_collection()
    fetch = Fetch(
        partition.tick,
        partition.index,
        attempt,
        partition.most_rows,
        partition.most_bytes,
        partition.tasks,
    )
    try:
        reader = client.do_get(fetch.ticket())
        try:
            number = delivery_number(reader.schema)
            for chunk in reader:
                yield partition.columns.convert(chunk.data.replace_schema_metadata(None))
        except GeneratorExit:
            # Spark wants no more: the agent shall know now, not when this worker is gone.
            reader.cancel()
            raise
        if number:
            list(client.do_action(flight.Action("complete", str(number).encode())))
    except flight.FlightError as exc:
        raise AgentError(
            "AGENT",
            f"The Pub/Sub agent of executor process {os.getppid()}",
            f"failed: {str(exc).split('. Detail:')[0]}",
            "The task is run again by Spark; if it fails for good, see the message",
        ) from exc
