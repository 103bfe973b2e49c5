"""The streaming source; plans on the driver, reads in workers.

Spark builds one reader per query run in a driver process of its own. It owns the control connection
and, during the first batch, the connection that holds the snapshot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock._core.metrics import serve_metrics
from penstock._core.stopping import end_on_sigterm
from penstock.errors import DataLossError, PenstockError
from penstock.postgres.batch import check_schema
from penstock.postgres.options import PostgresCdcOptions
from penstock.postgres.source.metrics import WalClock, measure, render_metrics
from penstock.postgres.source.offsets import SNAPSHOT, START, WAL, CdcOffset
from penstock.postgres.source.server import StreamServer
from penstock.postgres.source.task import SlotPartition, read_partition

_LOG = logging.getLogger(__name__)


class PostgresStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One run of one query."""

    def __init__(self, options: PostgresCdcOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        # Spark builds the reader twice and pickles one to the tasks: only the one that plans
        # batches connects.
        self._opened: StreamServer | None = None
        self._has_checked = False
        # The slot is lost and a new snapshot is planned: there is nothing to advance.
        self._is_slot_lost = False
        # Trigger.AvailableNow: where the WAL ended when the query was started.
        self._drain_to: int | None = None
        self._moved_at = time.monotonic()
        self._end: CdcOffset | None = None
        self._wal_clock = WalClock()
        self._measured: dict[str, Any] = {}

    @property
    def _server(self) -> StreamServer:
        if self._opened is None:
            opened = StreamServer(self._options)
            try:
                check_schema(opened.plan, self._schema)
                opened.prepare()
            except PenstockError:
                opened.close()
                raise
            if self._options.drop_on_stop:
                end_on_sigterm(opened.drop)
            if self._options.metrics_port is not None:
                subject = f"slot {self._options.slot_name}"
                serve_metrics(self._options.metrics_port, self._metrics, subject)
            self._opened = opened
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Called in each run until the first batch is done: also when that is run again.

        Raises:
            PenstockError: the table cannot be read, or the slot cannot be made.
        """
        server = self._server
        self._has_checked = True
        if self._options.snapshot_mode == "never":
            return self._at(WAL, server.reuse_or_create()).to_json()
        return self._at(START).to_json()

    def _at(self, phase: str, lsn: int = 0) -> CdcOffset:
        return CdcOffset(phase, self._options.slot_name, self._server.facts.system_identifier, lsn)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Called once, before the first batch; `maxWalBytesPerTrigger` is not one of Spark's."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Called once when the query shall only read what is there."""
        self._drain_to = self._server.current_lsn()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Called before each batch, and again and again while there is nothing to do.

        Raises:
            PenstockError: the slot no longer has what the query needs.
        """
        del limit
        offset = CdcOffset.from_json(start)
        if not self._check(offset):
            return self._at(SNAPSHOT).to_json()
        self._end = self._next(offset)
        return self._end.to_json()

    def _next(self, offset: CdcOffset) -> CdcOffset:
        if offset.phase == START:
            # Nothing is planned yet, so a slot of this name is not this query's.
            if self._options.snapshot_mode == "initial":
                self._server.check_free()
            return self._at(SNAPSHOT)
        if self._options.snapshot_mode == "only":
            return offset
        self._server.check_tables()
        begin = offset.lsn if offset.phase == WAL else self._server.slot_lsn()
        end, has_changes = self._look(begin)
        if end <= begin:
            return offset
        is_due = time.monotonic() - self._moved_at >= self._options.heartbeat_interval
        # The first position after a snapshot is worth a batch of its own: it ends the snapshot.
        if not (has_changes or is_due or offset.phase == SNAPSHOT):
            return offset
        self._moved_at = time.monotonic()
        return self._at(WAL, end)

    def _look(self, begin: int) -> tuple[int, bool]:
        """Find the end of the next batch, and whether there is any change before it."""
        last = self._drain_to if self._drain_to is not None else self._server.current_lsn()
        step = self._options.max_wal_bytes_per_trigger or last
        end = min(last, begin + step)
        while begin < end:
            if self._server.has_changes(end):
                return end, True
            if end == last:
                break
            # A transaction that is larger than the limit is read whole, when it is committed.
            end = min(last, end + step)
        return end, False

    def _check(self, offset: CdcOffset) -> bool:
        """Compare the slot with the checkpoint, once; False: a new snapshot has to be taken."""
        if self._has_checked:
            return True
        try:
            self._check_slot(offset)
        except DataLossError as error:
            if self._options.on_slot_lost != "resnapshot":
                raise
            _LOG.warning("taking a new snapshot: %s", error)
            self._has_checked = True
            self._is_slot_lost = True
            return False
        self._has_checked = True
        return True

    def _check_name(self, offset: CdcOffset) -> None:
        if offset.slot != self._options.slot_name:
            raise DataLossError(
                "SLOT_RENAMED",
                f"Slot '{self._options.slot_name}'",
                f"the checkpoint of this query is of slot '{offset.slot}'",
                "Set option 'slot' back, or give the query a checkpointLocation of its own",
            )

    def _check_slot(self, offset: CdcOffset) -> None:
        self._check_name(offset)
        if self._options.snapshot_mode == "only" or offset.phase == START:
            return
        if offset.phase == SNAPSHOT:
            self._server.check_after_snapshot(offset.system)
        else:
            self._server.check_position(offset.lsn, offset.system)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called once per batch; also for a batch of the checkpoint that is run again.

        Raises:
            PenstockError: the slot cannot be made, or has not what the batch needs.
        """
        begin, until = CdcOffset.from_json(start), CdcOffset.from_json(end)
        server = self._server
        self._check_name(until)
        if until.phase == SNAPSHOT:
            if begin.phase == SNAPSHOT:
                return []
            # Also a new one, when the slot was lost and onSlotLost says so.
            self._has_checked = True
            self._is_slot_lost = False
            return server.begin_snapshot()
        if until == begin:
            return []
        # Nothing replaces what a batch that is run again would miss.
        if not self._has_checked:
            self._check_slot(begin)
            self._has_checked = True
        # The first batch, run again, begins where the slot is: not after its own end.
        if begin.lsn > until.lsn:
            server.check_position(until.lsn, until.system)
        return [
            SlotPartition(
                settings=server.settings,
                plan=server.plan,
                slot=self._options.slot_name,
                publication=self._options.publication_name,
                start_lsn=begin.lsn,
                end_lsn=until.lsn,
                evolves=self._options.on_schema_change == "evolve",
                retry_seconds=self._options.retry_timeout,
                version=server.facts.version,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in a worker, once per task attempt."""
        return read_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the batch up to `end` is in the sink and in Spark's commit log."""
        offset = CdcOffset.from_json(end)
        if offset.phase == SNAPSHOT:
            self._server.end_snapshot()
        elif offset.phase == WAL and not self._is_slot_lost:
            # Only now may the server forget it; see docs/delivery.md.
            self._server.advance(offset.lsn)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Called for every progress report: the source's measurements."""
        self._measured = self._measure()
        return self._measured

    def _measure(self) -> dict[str, Any]:
        server = self._server
        return measure(server.slot(), server.current_lsn(), self._end, self._wal_clock)

    def _metrics(self) -> str:
        # Of the last report: this thread must not use the connection of the other.
        return render_metrics(self._measured, self._options.slot_name, self._options.subject)

    def stop(self) -> None:
        """Called when Spark ends this process in order."""
        if self._opened is not None:
            self._opened.close()
