"""Snapshot and stream: no gap, no overlap, the same rows again, however often the driver dies."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.postgres.lsn import parse_lsn
from tests.support.cdc import CRASHES, CrashError, Stream, source_table, to_executor

Make = Callable[..., Stream]
Db = psycopg.Connection[Any]


def fill(db: Db, first: int, last: int) -> None:
    db.execute(
        "INSERT INTO orders SELECT g, 'n' || g, g, NULL FROM generate_series(%s::int8, %s) g",
        [first, last],
    )


def ops(rows: list[dict[str, Any]] | None) -> list[tuple[str, int]]:
    return [(row["_op"], row["id"]) for row in rows or []]


def test_the_stream_goes_on_where_the_snapshot_ends(db: Db, stream: Stream) -> None:
    fill(db, 1, 3)
    assert sorted(ops(stream.step())) == [("snapshot", 1), ("snapshot", 2), ("snapshot", 3)]
    db.execute("UPDATE orders SET name = 'x' WHERE id = 1")
    db.execute("DELETE FROM orders WHERE id = 2")
    fill(db, 4, 4)
    assert ops(stream.run()) == [("update", 1), ("delete", 2), ("insert", 4)]
    assert stream.table("id") == source_table(db, "orders", "id")


def test_a_snapshot_under_concurrent_writes_has_no_gap_and_no_overlap(
    url: str, db: Db, stream: Stream
) -> None:
    fill(db, 1, 2000)
    ended = threading.Event()

    def write() -> None:
        number = 2000
        with psycopg.connect(url, autocommit=True) as own:
            while not ended.is_set():
                number += 1
                fill(own, number, number)
                own.execute("UPDATE orders SET note = 'u' WHERE id = %s", [number % 2000])
                own.execute("DELETE FROM orders WHERE id = %s", [number - 1000])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(8):
            stream.step()
    finally:
        ended.set()
        writer.join()
    stream.run()
    assert stream.table("id") == source_table(db, "orders", "id")
    # Each insert is either in the snapshot or in the stream.
    inserted = [row["id"] for row in stream.rows if row["_op"] in ("snapshot", "insert")]
    assert len(inserted) == len(set(inserted))


@pytest.mark.parametrize("crash", CRASHES)
def test_a_batch_of_changes_that_is_run_again_has_the_same_rows(
    db: Db, stream: Stream, crash: str
) -> None:
    fill(db, 1, 2)
    stream.run()
    fill(db, 3, 4)
    with pytest.raises(CrashError):
        stream.step(crash)
    before = stream.sink.get(len(stream.offsets) - 1)
    # What comes meanwhile belongs to the next batch.
    fill(db, 5, 6)
    again = stream.step()
    assert ops(again) == [("insert", 3), ("insert", 4)]
    assert before is None or before == again
    assert ops(stream.run()) == [("insert", 5), ("insert", 6)]
    assert stream.table("id") == source_table(db, "orders", "id")


@pytest.mark.parametrize("crash", CRASHES)
def test_a_snapshot_that_is_broken_off_is_taken_again(db: Db, stream: Stream, crash: str) -> None:
    """With a new slot: the stream begins where the snapshot that counts was taken."""
    fill(db, 1, 3)
    with pytest.raises(CrashError):
        stream.step(crash)
    db.execute("DELETE FROM orders WHERE id = 1")
    fill(db, 4, 4)
    assert sorted(row["id"] for row in stream.step() or []) == [2, 3, 4]
    fill(db, 5, 5)
    assert ops(stream.run()) == [("insert", 5)]
    assert stream.table("id") == source_table(db, "orders", "id")


def test_a_snapshot_that_is_planned_twice_is_the_same_one(db: Db, stream: Stream) -> None:
    """So does Spark with a query that uses the stream twice, as in a self-join."""
    fill(db, 1, 3)
    reader = stream.start()
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadAllAvailable())
    planned = [reader.partitions(first, end) for _ in range(2)]
    fill(db, 4, 4)
    for partitions in planned:
        batches = [batch for one in partitions for batch in reader.read(to_executor(one))]
        assert sorted(n for batch in batches for n in batch["id"].to_pylist()) == [1, 2, 3]


def test_the_slot_is_advanced_after_the_commit_and_not_before(db: Db, stream: Stream) -> None:
    def confirmed() -> int:
        row = db.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    stream.run()
    fill(db, 1, 1)
    at = confirmed()
    with pytest.raises(CrashError):
        stream.step("written")
    stream.start()
    assert stream.step() is not None
    # Spark has committed it, and says so when it plans the next batch.
    assert confirmed() <= parse_lsn(stream.offsets[-1]["lsn"])
    fill(db, 2, 2)
    stream.step()
    assert confirmed() == parse_lsn(stream.offsets[-2]["lsn"])
    assert confirmed() > at


def test_many_restarts_lose_nothing(db: Db, stream: Stream) -> None:
    fill(db, 1, 10)
    for number in range(12):
        db.execute("UPDATE orders SET amount = amount + 1 WHERE id <= 5")
        fill(db, 100 + number, 100 + number)
        db.execute("DELETE FROM orders WHERE id = %s", [6 + number])
        try:
            stream.step((*CRASHES, None)[number % 4])
        except CrashError:
            stream.step()
        stream.crash()
    stream.run()
    assert stream.table("id") == source_table(db, "orders", "id")


def test_drain_reads_what_was_there_at_the_start_and_ends(db: Db, stream: Stream) -> None:
    fill(db, 1, 2)
    stream.run()
    stream.crash()
    fill(db, 3, 4)
    stream.start(is_draining=True)
    fill(db, 5, 5)
    assert ops(stream.run()) == [("insert", 3), ("insert", 4)]
    assert stream.step() is None
    stream.crash()
    stream.start(is_draining=True)
    assert ops(stream.run()) == [("insert", 5)]


def test_batches_are_cut_by_their_wal(db: Db, make: Make) -> None:
    stream = make(maxWalBytesPerTrigger="8192")
    stream.run()
    for number in range(20):
        # Nothing that could be compressed.
        db.execute("INSERT INTO orders VALUES (%s, %s)", [number, secrets.token_hex(900)])
    batches = len(stream.offsets)
    assert [row["id"] for row in stream.run()] == list(range(20))
    assert len(stream.offsets) - batches > 3


def test_a_transaction_larger_than_the_limit_is_not_cut(db: Db, make: Make) -> None:
    stream = make(maxWalBytesPerTrigger="8192")
    stream.run()
    fill(db, 1, 5000)
    rows = stream.run()
    assert len(rows) == 5000
    assert len({row["_lsn"] for row in rows}) == 1
    assert [row["_ordinal"] for row in rows] == list(range(0, 10_000, 2))


def test_nothing_happens_while_nothing_happens(db: Db, stream: Stream) -> None:
    """An idle table costs no batch, also when other tables are written to."""
    fill(db, 1, 1)
    stream.run()
    db.execute("CREATE TABLE others (x int)")
    # The one that carries the commit of the last.
    assert stream.step() == []
    for _ in range(3):
        db.execute("INSERT INTO others SELECT generate_series(1, 1000)")
        assert stream.step() is None


def test_an_idle_table_does_not_hold_the_wal(db: Db, make: Make) -> None:
    """Other tables are written to; after the interval an empty batch moves the slot on."""
    stream = make(heartbeatInterval="1s")
    stream.run()
    db.execute("CREATE TABLE others (x int)")
    assert stream.reader is not None
    for _ in range(2):
        db.execute("INSERT INTO others SELECT generate_series(1, 1000)")
        stream.reader._moved_at -= 2
        assert stream.step() == []
    row = db.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots").fetchone()
    assert row == (stream.offsets[-2]["lsn"],)


def test_a_stream_without_a_snapshot_begins_now(db: Db, make: Make) -> None:
    stream = make(snapshotMode="never")
    fill(db, 1, 2)
    assert stream.step() is None
    fill(db, 3, 3)
    assert ops(stream.run()) == [("insert", 3)]


def test_a_snapshot_alone_needs_no_slot(db: Db, make: Make) -> None:
    stream = make(snapshotMode="only")
    fill(db, 1, 2)
    assert sorted(ops(stream.run())) == [("snapshot", 1), ("snapshot", 2)]
    fill(db, 3, 3)
    assert stream.step() is None
    assert db.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def test_an_existing_slot_is_gone_on_from_without_a_snapshot(db: Db, make: Make) -> None:
    first = make(snapshotMode="never")
    first.step()
    first.crash()
    fill(db, 1, 1)
    assert ops(make(snapshotMode="never").run()) == [("insert", 1)]
