"""Writes one partition of one batch; runs in workers.

Encodes Arrow batches, leaves out what an earlier attempt has committed, sends the rest, and ends
only when all of it is committed and no row was refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.errors import CheckpointError, OptionError, RowError, WriteRejectedError
from penstock.snowflake import json_text
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.ndjson import ColumnPlan, Encoded, Encoder, ValuePolicy
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.sink.channel import ChannelSession, Chunk
from penstock.snowflake.sink.tokens import OffsetToken


@dataclass(frozen=True)
class SinkPlan:
    """What tasks have to know of the tables. Picklable; made on the driver."""

    table: TableName
    columns: tuple[ColumnPlan, ...]
    # Names of the two columns that landing rows have beside those of the change stream.
    channel_column: str | None = None
    offset_column: str | None = None


@dataclass(frozen=True)
class TaskPlace:
    """Which part of which batch a task writes."""

    stream: str
    batch: int
    partition: int
    # Whether the channel is used again by a later batch.
    is_lasting: bool = True
    # Where in the WAL the snapshot was taken whose rows these are. One that was broken off is taken
    # again with other rows: they get a channel of their own, and the merge voids the first ones.
    snapshot_lsn: int | None = None

    @property
    def channel(self) -> str:
        """The name of its channel: the same for every attempt."""
        # In the form of an unquoted name: the service takes names in requests as SQL does.
        snapshot = "" if self.snapshot_lsn is None else f"_S{self.snapshot_lsn:X}"
        return f"{self.stream}_{self.partition:05d}{snapshot}".replace("-", "_").upper()


@dataclass
class TaskTotals:
    """What a task has done."""

    rows: int = 0
    # Of them, committed by an earlier attempt.
    skipped: int = 0
    dead_lettered: int = 0
    # Left out by the service; Snowflake keeps them in ERROR_TABLE.
    refused: int = 0


def write_partition(
    options: SnowpipeOptions, plan: SinkPlan, place: TaskPlace, batches: Iterator[pa.RecordBatch]
) -> TaskTotals:
    """Write rows exactly once, whatever earlier attempts have done.

    Raises:
        PenstockError: a row or the service stands in the way; the task has failed.
    """
    if options.channels is not None and place.partition >= options.channels:
        raise OptionError(
            "CHANNELS",
            f"Option 'channels' of {options.USE}",
            f"is {options.channels}, but the batch has a partition {place.partition + 1}",
            f"Write fewer partitions, df.coalesce({options.channels}), or raise it",
        )
    task = _Task(options, plan, place)
    is_good = False
    try:
        for batch in batches:
            task.take(batch)
        totals = task.finish()
        is_good = True
        return totals
    finally:
        task.release(is_good=is_good and place.is_lasting)


@dataclass
class _Lane:
    """One channel's rows: skips what is committed, cuts the rest into chunks."""

    options: SnowpipeOptions
    session: ChannelSession
    token: OffsetToken
    skipped: int = 0
    # Lines that were left out and could have to be sent after all.
    kept: list[bytes] = field(default_factory=list)

    def take(self, data: bytes) -> None:
        if not data:
            return
        lines = data.split(b"\n")
        lines.pop()
        left = self.session.resumed.rows - self.token.rows if self.is_skipping else 0
        if left:
            head = lines[:left]
            blob = b"\n".join(head) + b"\n"
            self.token = self.token.after(blob, len(head))
            if self.options.on_changed_replay == "resend":
                self.kept += head
            self.skipped += len(head)
            if not self.is_skipping:
                self._compare()
            lines = lines[left:]
        self._send(lines)

    @property
    def is_skipping(self) -> bool:
        """Whether rows that are committed are still to come."""
        return self.skipped < self.session.resumed.rows

    def finish(self) -> None:
        if self.is_skipping:
            self._compare()
        self.session.finish()

    def _compare(self) -> None:
        if self.token == self.session.resumed:
            self.kept = []
            return
        if self.options.on_changed_replay == "fail":
            raise CheckpointError(
                "REPLAY_CHANGED",
                f"Batch {self.token.batch}, channel '{self.session.name}'",
                f"{self.session.resumed.rows} rows of it are committed, and the first "
                f"{self.token.rows} rows of this run are others",
                "Exactly once needs a source that gives the same rows in the same order again, and "
                "no shuffle between it and the sink. To go on, with these rows perhaps twice, set "
                'once .option("onChangedReplay", "resend")',
            )
        lines, self.kept = self.kept, []
        self.token = OffsetToken.begin(self.token.batch)
        self.skipped = 0
        self.session.forget_resumed()
        self._send(lines)

    def _send(self, lines: list[bytes]) -> None:
        if not lines:
            return
        size = sum(map(len, lines)) + len(lines)
        step = max(1, self.options.chunk_bytes * len(lines) // size)
        for first in range(0, len(lines), step):
            part = lines[first : first + step]
            blob = b"\n".join(part) + b"\n"
            end = self.token.after(blob, len(part))
            self.session.send(Chunk(self.token, end, list(map(msgspec.Raw, part)), len(blob)))
            self.token = end


class _Task:
    def __init__(self, options: SnowpipeOptions, plan: SinkPlan, place: TaskPlace) -> None:
        self._options = options
        self._plan = plan
        self._place = place
        policy = ValuePolicy(options.on_non_finite, options.on_out_of_range)
        self._encoder = Encoder(plan.columns, policy)
        self._totals = TaskTotals()
        self._lanes: list[_Lane] = []
        self._letters: _Lane | None = None
        self._rows = self._lane(plan.table, place.channel)
        if self._rows.session.has_refused and options.on_refused_rows == "fail":
            error = self._refused(self._rows.session)
            self.release(is_good=False)
            raise error

    def _lane(self, table: TableName, channel: str) -> _Lane:
        session = ChannelSession(self._options, table, channel, self._place.batch)
        lane = _Lane(self._options, session, OffsetToken.begin(self._place.batch))
        self._lanes.append(lane)
        return lane

    def take(self, batch: pa.RecordBatch) -> None:
        encoded = self._encoder.encode(batch, self._extra(batch.num_rows))
        if encoded.flaws is not None:
            self._divert(batch, encoded)
        self._rows.take(encoded.data)
        self._totals.rows += batch.num_rows

    def finish(self) -> TaskTotals:
        for lane in self._lanes:
            lane.finish()
            is_fatal = lane is not self._rows or self._options.on_refused_rows == "fail"
            if is_fatal and lane.session.has_refused:
                raise self._refused(lane.session)
        totals = self._totals
        totals.skipped = self._rows.skipped
        totals.refused = self._rows.session.refused_count
        return totals

    def release(self, *, is_good: bool) -> None:
        for lane in self._lanes:
            lane.session.release(is_good=is_good)

    def _extra(self, count: int) -> pl.DataFrame | None:
        plan = self._plan
        if plan.channel_column is None or plan.offset_column is None:
            return None
        numbers = pl.int_range(self._totals.rows, self._totals.rows + count, eager=True)
        # Batch and row in one number; as text, because JSON's readers may take it for a double.
        offsets = f"{self._place.batch}" + numbers.cast(pl.String).str.zfill(12)
        channel = pl.Series([self._place.channel], dtype=pl.String).new_from_index(0, count)
        return pl.DataFrame({plan.channel_column: channel, plan.offset_column: offsets})

    def _divert(self, batch: pa.RecordBatch, encoded: Encoded) -> None:
        """Send rows that do not fit to the dead-letter table, or fail."""
        flaws = encoded.flaws
        if flaws is None:
            return
        rows = np.flatnonzero(flaws)
        target = self._options.dead_letter
        if target is None:
            flaw = encoded.reasons[flaws[rows[0]] - 1]
            more = f" (and {len(rows) - 1} more rows near it)" if len(rows) > 1 else ""
            raise RowError(
                "ROW_REFUSED",
                f"Column '{flaw.column}' in row {self._totals.rows + int(rows[0])} of partition "
                f"{self._place.partition}, batch {self._place.batch}{more}",
                f"its value {flaw.reason}",
                "Correct it in the query, see options 'onNonFinite' and 'onOutOfRange', or set "
                '.option("onRefusedRows", "dead-letter")',
            )
        if self._letters is None:
            self._letters = self._lane(target, f"{self._place.channel}_LETTERS")
        self._letters.take(letters(self._plan, self._place, batch, encoded, self._totals.rows))
        self._totals.dead_lettered += len(rows)

    def _refused(self, session: ChannelSession) -> WriteRejectedError:
        return WriteRejectedError(
            "ROWS_REFUSED",
            f"Table {session.table}, partition {self._place.partition} of batch "
            f"{self._place.batch}",
            f"the service has left out {session.refused_count or 'some'} rows; the last one is row "
            f"{session.error_position}: {session.error_message}",
            f"The others are committed. If ERROR_LOGGING is on, the rows are in ERROR_TABLE"
            f"({session.table.sql}). Correct the query or the table; to go on without these rows "
            'set .option("onRefusedRows", "dead-letter")',
        )


# Columns of the dead-letter table, with their types.
LETTER_COLUMNS = {
    "TABLE_NAME": "VARCHAR",
    "CHANNEL": "VARCHAR",
    "BATCH_ID": "NUMBER(19,0)",
    "ROW_NUMBER": "NUMBER(19,0)",
    "COLUMN_NAME": "VARCHAR",
    "REASON": "VARCHAR",
    "ROW_DATA": "VARIANT",
}


def letters(
    plan: SinkPlan, place: TaskPlace, batch: pa.RecordBatch, encoded: Encoded, rows_before: int
) -> bytes:
    """Write the rows that do not fit as lines of the dead-letter table."""
    codes = encoded.flaws
    if codes is None:
        return b""
    rows = np.flatnonzero(codes)
    chosen = batch.take(pa.array(rows))
    documents = json_text.rows_as_documents([column.name for column in plan.columns], chosen)
    reasons = [encoded.reasons[code - 1] for code in codes[rows]]
    frame = pl.DataFrame(
        {
            "TABLE_NAME": [str(plan.table)] * len(rows),
            "CHANNEL": [place.channel] * len(rows),
            "BATCH_ID": [place.batch] * len(rows),
            "ROW_NUMBER": rows + rows_before,
            "COLUMN_NAME": [reason.column for reason in reasons],
            "REASON": [reason.reason for reason in reasons],
        }
    )
    return json_text.lines(frame, [("ROW_DATA", documents)], len(rows), None)
