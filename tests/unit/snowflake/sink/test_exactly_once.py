"""Rows are in the table once, whatever happens to tasks, channels and requests on the way."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import types as spark

from penstock.errors import CheckpointError, ConnectError, OptionError, WriteRejectedError
from penstock.snowflake.preflight import plans_for
from penstock.snowflake.sink.channel import ChannelSession, Chunk
from penstock.snowflake.sink.pool import POOL, ClientPool
from penstock.snowflake.sink.tokens import OffsetToken
from penstock.testing.snowflake import SnowflakeFault
from tests.support.waiting import wait_for
from tests.unit.snowflake.sink.conftest import Sink

ROWS = list(range(2000))
# Several requests for a batch.
SMALL = {"chunkBytes": "4000"}


def test_batches_follow_each_other_in_one_channel(sink: Sink) -> None:
    for batch in range(3):
        totals = sink.write(ROWS, batch)
        assert (totals.rows, totals.skipped) == (2000, 0)
    assert sink.rows() == sorted(ROWS * 3)
    assert sink.status()["last_committed_offset_token"].startswith("v1:000000000002:000000002000:")
    # One client served them all.
    assert len(POOL) == 1


def test_a_batch_that_is_committed_is_not_sent_again(sink: Sink) -> None:
    sink.write(ROWS, 7)
    POOL.close()
    sent = sink.emulator.calls()["append_rows"]
    totals = sink.write(ROWS, 7)
    assert (totals.rows, totals.skipped) == (2000, 2000)
    assert sink.emulator.calls()["append_rows"] == sent
    assert sink.rows() == ROWS


def test_a_batch_goes_on_after_its_committed_rows(sink: Sink) -> None:
    """A task that was killed after some of its chunks were committed."""
    sink.write(ROWS[:700], 7, **SMALL)
    POOL.close()
    # The same batch, whole: its first 700 rows are those that the killed task has sent.
    totals = sink.write(ROWS, 7)
    assert totals.skipped == 700
    assert sink.rows() == ROWS


@pytest.mark.parametrize("other", [ROWS[::-1], ROWS[1:], ROWS[:100], [*ROWS[:699], 5, 5]])
def test_other_rows_at_a_replay_are_an_error_and_not_written(sink: Sink, other: list[int]) -> None:
    sink.write(ROWS[:700], 7)
    with pytest.raises(CheckpointError, match=r"REPLAY_CHANGED.*700 rows.*resend"):
        sink.write(other, 7)
    assert sink.rows() == ROWS[:700]


def test_other_rows_at_a_replay_are_sent_when_told_so(sink: Sink) -> None:
    sink.write(ROWS[:700], 7)
    sink.write(ROWS[::-1], 7, onChangedReplay="resend")
    assert sink.rows() == sorted(ROWS + ROWS[:700])
    # And that run can be replayed.
    assert sink.write(ROWS[::-1], 7).skipped == 2000


def test_a_checkpoint_older_than_the_table_is_an_error(sink: Sink) -> None:
    sink.write(ROWS, 7)
    with pytest.raises(CheckpointError, match=r"batch 7.*batch 6.*channelPrefix"):
        sink.write(ROWS, 6)
    assert sink.rows() == ROWS


def test_more_partitions_than_channels_are_refused(sink: Sink) -> None:
    sink.write(ROWS, 0, 1, channels="2")
    with pytest.raises(OptionError, match=r"partition 3.*coalesce\(2\)"):
        sink.write(ROWS, 0, 2, channels="2")


@pytest.mark.parametrize(
    "fault",
    [
        SnowflakeFault(kind="error", method="append_rows", status=429, count=2),
        SnowflakeFault(kind="error", method="append_rows", status=503, count=2),
        SnowflakeFault(kind="error", method="append_rows", status=410, count=1),
        SnowflakeFault(kind="error", method="append_rows", status=400, count=1),
        SnowflakeFault(kind="error", method="open_channel", status=503, count=1),
        SnowflakeFault(kind="error", method="channel_status", status=503, count=2),
        SnowflakeFault(kind="drop", method="append_rows", count=2),
        SnowflakeFault(kind="lose_response", method="append_rows", count=2),
        SnowflakeFault(kind="delay_commit", method="append_rows", seconds=2.0, count=2),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.method}-{fault.status}",
)
def test_a_fault_of_the_service_costs_time_only(sink: Sink, fault: SnowflakeFault) -> None:
    sink.emulator.inject(fault)
    sink.write(ROWS, 0, **SMALL)
    sink.write(ROWS, 1, **SMALL)
    assert sink.rows() == sorted(ROWS * 2)
    assert sink.emulator.faults_struck()[fault.kind] > 0


def test_a_channel_that_does_not_move_is_opened_again(sink: Sink) -> None:
    sink.emulator.inject(SnowflakeFault(kind="freeze_channel", method="append_rows", count=1))
    sink.write(ROWS, 0, flushTimeout="8s", **SMALL)
    assert sink.rows() == ROWS


def test_a_channel_that_never_moves_is_an_error_within_the_timeout(sink: Sink) -> None:
    sink.emulator.inject(SnowflakeFault(kind="freeze_channel", method="append_rows"))
    with pytest.raises(ConnectError, match=r"SNOWPIPE_STALLED.*flushTimeout|without moving"):
        sink.write(ROWS, 0, flushTimeout="4s")
    sink.emulator.clear_faults()
    sink.write(ROWS, 0)
    assert sink.rows() == ROWS


def test_an_older_attempt_cannot_write_after_a_later_one_has_begun(sink: Sink) -> None:
    """A zombie: its channel was opened again by another attempt in another process."""
    schema = spark.StructType([spark.StructField("n", spark.LongType())])
    options = sink.options()
    table = plans_for(options, schema).sink.table
    begin = OffsetToken.begin(0)

    def chunk(start: OffsetToken, value: int) -> Chunk:
        line = b'{"N":%d}' % value
        return Chunk(start, start.after(line + b"\n", 1), [msgspec.Raw(line)], len(line))

    zombie = ChannelSession(options, table, sink.channel, 0, pool=ClientPool())
    first = chunk(begin, 1)
    zombie.send(first)
    zombie.finish()
    later = ChannelSession(options, table, sink.channel, 0, pool=ClientPool())
    assert later.resumed == first.end
    with pytest.raises(WriteRejectedError, match="another attempt"):  # noqa: PT012
        zombie.send(chunk(first.end, 666))
        zombie.finish()
    zombie.release(is_good=False)
    later.send(chunk(first.end, 2))
    later.finish()
    later.release(is_good=False)
    assert sink.rows() == [1, 2]


def test_a_channel_goes_from_worker_to_worker(sink: Sink) -> None:
    sink.write(ROWS, 0)
    # Batch 1 by another worker: with a client of its own, because the options are others.
    sink.write(ROWS, 1, connectTimeout="29s")
    sink.write(ROWS, 2)
    assert sink.rows() == sorted(ROWS * 3)


def test_idle_clients_are_closed(sink: Sink) -> None:
    sink.write([1], 0, idleTimeout="200ms")
    wait_for(lambda: len(POOL), lambda count: count == 0)
    sink.write([2], 1, idleTimeout="200ms")
    assert sink.rows() == [1, 2]
