"""A slot that no longer has what the checkpoint needs: an error that says so, never a gap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from penstock.errors import PenstockError
from penstock.testing.postgres import PostgresServer, postgres_server
from tests.support.cdc import CrashError, Stream, source_table
from tests.support.waiting import wait_for
from tests.unit.postgres.source.conftest import ORDERS
from tests.unit.postgres.source.test_delivery import fill, ops

Make = Callable[..., Stream]
Db = psycopg.Connection[Any]
SLOT = "penstock_public_orders"


def drop(db: Db) -> None:
    db.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])


def recreate(db: Db) -> None:
    drop(db)
    db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])


def advance(db: Db) -> None:
    db.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [SLOT])


def of_another_plugin(db: Db) -> None:
    drop(db)
    db.execute("SELECT pg_create_physical_replication_slot(%s, true)", [SLOT])


def begun(db: Db, stream: Stream) -> None:
    """Bring a stream behind its snapshot, and stop it."""
    fill(db, 1, 2)
    stream.run()
    fill(db, 3, 3)
    stream.run()
    stream.crash()
    fill(db, 4, 4)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (drop, "SLOT_MISSING"),
        (recreate, "SLOT_MOVED"),
        (advance, "SLOT_MOVED"),
        (of_another_plugin, "SLOT_UNFIT"),
    ],
)
def test_a_slot_that_was_tampered_with_is_an_error(
    db: Db, stream: Stream, damage: Callable[[Db], None], code: str
) -> None:
    begun(db, stream)
    damage(db)
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == code
    assert SLOT in str(caught.value)


@pytest.mark.parametrize("damage", [drop, recreate, advance])
def test_a_new_snapshot_can_be_taken_instead(
    db: Db, make: Make, damage: Callable[[Db], None]
) -> None:
    stream = make(onSlotLost="resnapshot")
    begun(db, stream)
    damage(db)
    assert sorted(ops(stream.step())) == [("snapshot", number) for number in range(1, 5)]
    fill(db, 5, 5)
    assert ops(stream.run()) == [("insert", 5)]
    assert stream.table("id") == source_table(db, "orders", "id")


def test_a_batch_that_is_run_again_needs_its_slot(db: Db, make: Make) -> None:
    """Its offsets are in the log: no other rows may take their place."""
    stream = make(onSlotLost="resnapshot")
    begun(db, stream)
    stream.start()
    with pytest.raises(Exception, match="written"):
        stream.step("written")
    drop(db)
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == "SLOT_MISSING"


def test_another_server_is_noticed(db: Db, stream: Stream, postgres_16: PostgresServer) -> None:
    begun(db, stream)
    name = postgres_16.create_database()
    try:
        with psycopg.connect(postgres_16.url(name), autocommit=True) as other:
            other.execute(ORDERS)
            stream.raw["url"] = postgres_16.url(name)
            with pytest.raises(PenstockError) as caught:
                stream.step()
            stream.crash()
    finally:
        postgres_16.drop_database(name)
    assert caught.value.code == "SLOT_SERVER_CHANGED"


def test_wal_that_was_removed_is_an_error_while_running_and_at_the_restart() -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}
    with (
        postgres_server(settings) as server,
        psycopg.connect(server.url(), autocommit=True) as db,
    ):
        db.execute(ORDERS)
        stream = Stream(server.url(), retryTimeout="1s")
        stream.run()
        db.execute("CREATE TABLE others (x text)")
        for _ in range(4):
            db.execute("INSERT INTO others SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
            db.execute("SELECT pg_switch_wal()")
            db.execute("CHECKPOINT")
        state = db.execute("SELECT wal_status FROM pg_replication_slots").fetchone()
        assert state == ("lost",)
        with pytest.raises(PenstockError) as running:
            stream.step()
        stream.crash()
        with pytest.raises(PenstockError) as restarted:
            stream.step()
        stream.crash()
    assert "SLOT" in running.value.code
    assert restarted.value.code.startswith("SLOT_")
    assert "max_slot_wal_keep_size" in str(restarted.value)


def test_a_first_batch_without_snapshot_whose_slot_was_made_again_is_not_run_as_empty(
    db: Db, make: Make
) -> None:
    """Where it began is in no log of Spark's, but its end is: and the new slot is after that."""
    stream = make(snapshotMode="never")
    assert stream.step() is None
    fill(db, 1, 2)
    with pytest.raises(CrashError):
        stream.step("planned")
    db.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == "SLOT_MOVED"


def test_a_first_batch_is_not_run_again_with_another_slot(db: Db, stream: Stream) -> None:
    with pytest.raises(CrashError):
        stream.step("written")
    stream.raw["slot"] = "another"
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == "SLOT_RENAMED"


def test_the_name_of_a_slot_that_is_there_is_refused_at_the_first_start(
    db: Db, stream: Stream
) -> None:
    db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == "SLOT_EXISTS"
    assert "snapshotMode=never" in caught.value.remedy
    assert stream.offsets == []


def test_another_slot_for_the_same_checkpoint_is_refused(db: Db, stream: Stream) -> None:
    begun(db, stream)
    stream.raw["slot"] = "another"
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == "SLOT_RENAMED"


def test_a_busy_slot_is_waited_for_and_then_named(url: str, db: Db, make: Make) -> None:
    stream = make(retryTimeout="2s")
    begun(db, stream)
    with closing(psycopg.connect(url + "?replication=database", autocommit=True)) as holder:
        holder_pid = holder.info.backend_pid
        options = f"(proto_version '1', publication_names '{SLOT}')"
        holder.pgconn.send_query(f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 {options}".encode())
        holder.pgconn.flush()
        query = "SELECT active FROM pg_replication_slots"
        wait_for(lambda: db.execute(query).fetchone(), lambda seen: seen == (True,))
        with pytest.raises(PenstockError) as caught:
            stream.run()
    assert caught.value.code == "OBJECT_IN_USE"
    assert f"PID {holder_pid}" in str(caught.value)
    wait_for(lambda: db.execute(query).fetchone(), lambda seen: seen == (False,))
    assert ops(stream.run()) == [("insert", 4)]


def test_a_server_that_restarts_is_waited_for() -> None:
    with (
        postgres_server() as server,
        psycopg.connect(server.url(), autocommit=True) as db,
    ):
        db.execute(ORDERS)
        stream = Stream(server.url())
        fill(db, 1, 2)
        stream.run()
        fill(db, 3, 3)
        server.restart()
        assert ops(stream.run()) == [("insert", 3)]
        stream.crash()


def test_a_dropped_table_is_noticed(db: Db, stream: Stream) -> None:
    begun(db, stream)
    stream.start()
    stream.run()
    db.execute("DROP TABLE orders")
    db.execute(ORDERS)
    fill(db, 9, 9)
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == "TABLE_GONE"
