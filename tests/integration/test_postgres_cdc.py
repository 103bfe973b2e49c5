"""PostgreSQL changes through Spark, against a real server: rows, errors, kills, lost sessions."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.postgres.lsn import parse_lsn
from penstock.testing.postgres import PostgresServer
from tests.support.cdc_driver import (
    committed,
    committed_lsn,
    runs,
    sink_rows,
    start_query,
)
from tests.support.cdc_kills import run_with_kills
from tests.support.cdc_snapshot import run_large_snapshot
from tests.support.cdc_table import assert_same_table
from tests.support.spark import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

Db = psycopg.Connection[Any]
# The machine may be busy.
PATIENCE = 120.0
# 100,000 of them are more than all buffers between the server and a task hold.
LONG = "x" * 900


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def db(url: str) -> Iterator[Db]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id int8 PRIMARY KEY, name text, amount numeric(10,2), day date)"
        )
        yield connection


class Query:
    """A query on a table, its folder, and what is to be seen of it."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, table: str = "orders") -> None:
        self._spark = spark
        self.folder = folder
        self.options = {"url": url, "table": table, "heartbeatInterval": "1s"}
        self.running: Any = None

    def start(self, trigger: dict[str, Any] | None = None, *, has_gate: bool = False) -> Any:
        self.running = start_query(
            self._spark, self.folder, self.options, trigger, has_gate=has_gate
        )
        return self.running

    def wait(self, condition: Callable[[], Any]) -> None:
        """Wait for something; the query must not fail meanwhile."""

        def look() -> Any:
            assert self.running.exception() is None, str(self.running.exception())
            return condition()

        wait_until(look, PATIENCE, lambda: (runs(self.folder), self.running.lastProgress))

    def wait_snapshot(self) -> None:
        self.wait(lambda: committed(self.folder))

    def wait_caught_up(self, db: Db) -> None:
        row = db.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        self.wait(lambda: committed_lsn(self.folder) >= parse_lsn(row[0]))

    def wait_failure(self) -> str:
        """Wait until it fails; gives the text that a user sees."""
        wait_until(lambda: not self.running.isActive, PATIENCE, lambda: self.running.status)
        return str(self.running.exception())

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()


@pytest.fixture
def query(spark: SparkSession, url: str, db: Db, tmp_path: Path) -> Iterator[Query]:
    made = Query(spark, url, tmp_path / "query")
    yield made
    made.stop()


def fill(db: Db, first: int, last: int, name: str = "n") -> None:
    db.execute(
        "INSERT INTO orders SELECT g, %s || g, g / 4.0, date '2026-01-31' + g::int %% 1000"
        " FROM generate_series(%s::int8, %s) g",
        [name, first, last],
    )


def kept(db: Db) -> tuple[int, int]:
    """Count slots and publications of the database."""
    row = db.execute(
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),"
        " (SELECT count(*) FROM pg_publication)"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def terminate(db: Db, condition: str) -> int:
    """End sessions of Penstock in this database; gives how many."""
    statement = (
        "SELECT count(*) FROM (SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"  # noqa: S608
        " WHERE application_name = 'penstock' AND datname = current_database()"
        f" AND {condition}) ended"
    )
    row = db.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_a_table_is_read_as_it_is_now_and_changes_nothing(
    spark: SparkSession, url: str, db: Db
) -> None:
    """`spark.read` gives typed rows with the columns of the stream, and leaves no slot."""
    fill(db, 1, 3)
    frame = spark.read.format("postgres_cdc").options(url=url, table="public.orders").load()
    assert frame.schema.simpleString() == (
        "struct<id:bigint,name:string,amount:decimal(10,2),day:date,_op:string,_lsn:bigint,"
        "_ordinal:bigint,_commit_time:timestamp,_xid:bigint,_unchanged:array<string>>"
    )
    rows = frame.orderBy("id").collect()
    assert [row[:5] for row in rows] == [
        (1, "n1", decimal.Decimal("0.25"), datetime.date(2026, 2, 1), "snapshot"),
        (2, "n2", decimal.Decimal("0.50"), datetime.date(2026, 2, 2), "snapshot"),
        (3, "n3", decimal.Decimal("0.75"), datetime.date(2026, 2, 3), "snapshot"),
    ]
    assert kept(db) == (0, 0)


def test_a_stream_has_the_snapshot_then_the_changes_and_measures_itself(
    db: Db, query: Query
) -> None:
    """Rows arrive typed and in order; `lastProgress` has the slot and its lag."""
    fill(db, 1, 3)
    query.start()
    query.wait_snapshot()
    db.execute("UPDATE orders SET id = 30, name = NULL WHERE id = 3")
    db.execute("DELETE FROM orders WHERE id = 1")
    query.wait_caught_up(db)
    changes = sink_rows(query.folder)
    assert list(zip(changes["_op"].to_pylist(), changes["id"].to_pylist(), strict=True)) == [
        ("snapshot", 1),
        ("snapshot", 2),
        ("snapshot", 3),
        ("delete", 3),
        ("insert", 30),
        ("delete", 1),
    ]
    assert assert_same_table(db, "orders", changes, ["id"]) == 2

    def measured() -> dict[str, Any]:
        seen = query.running.lastProgress
        found: dict[str, Any] = json.loads(seen["sources"][0]["latestOffset"]) if seen else {}
        return found

    query.wait(lambda: "planned" in measured())
    seen = measured()
    assert seen["slot"] == "penstock_orders"
    assert seen["slotStatus"] == "reserved"
    assert parse_lsn(seen["confirmed"]) <= parse_lsn(seen["planned"]) <= parse_lsn(seen["walEnd"])
    assert seen["walLagBytes"] >= seen["unplannedWalBytes"] >= 0


def test_available_now_reads_what_is_there_and_ends(db: Db, query: Query) -> None:
    """The first run takes the snapshot, each later one the changes since; then the query ends."""
    fill(db, 1, 2)
    for first in (3, 5, 7):
        running = query.start({"availableNow": True})
        assert running.awaitTermination(PATIENCE)
        fill(db, first, first + 1)
    ids = sink_rows(query.folder)["id"].to_pylist()
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]


def test_errors_of_a_query_reach_the_user_as_text(
    spark: SparkSession, url: str, db: Db, query: Query, tmp_path: Path
) -> None:
    """A wrong table, a slot that is taken, a changed table: code, fact and remedy."""
    with pytest.raises(Exception, match=r"\[PENSTOCK_TABLE_MISSING\].*public\.order"):
        spark.readStream.format("postgres_cdc").options(url=url, table="order").load()

    fill(db, 1, 2)
    query.start()
    query.wait_snapshot()
    taken = Query(spark, url, tmp_path / "taken")
    taken.start()
    error = taken.wait_failure()
    assert "[PENSTOCK_SLOT_EXISTS] Slot 'penstock_orders'" in error
    assert "Set option 'slot' to another name" in error

    db.execute("ALTER TABLE orders ADD COLUMN more int")
    db.execute("INSERT INTO orders VALUES (3, 'x', 1, NULL, 7)")
    error = query.wait_failure()
    assert "[PENSTOCK_SCHEMA_CHANGED]" in error
    assert "more" in error


def test_a_query_goes_on_when_connections_and_server_go_away(
    postgres: PostgresServer, db: Db, query: Query
) -> None:
    """The driver's connection, a task's in the middle of its rows, the server: all come back."""
    gate = query.folder / "gate"
    query.start(has_gate=True)
    query.wait_snapshot()

    wait_until(lambda: terminate(db, "state = 'idle' AND backend_type = 'client backend'"))
    fill(db, 1, 10)
    query.wait_caught_up(db)

    (query.folder / "gate-0-0").unlink()
    gate.touch()
    with db.transaction():
        db.execute("UPDATE orders SET name = repeat(name, 200)")
        fill(db, 11, 100_000, LONG)
    query.wait((query.folder / "gate-0-0").exists)
    reads = "state = 'active' AND query LIKE 'COPY%peek_binary_changes%'"
    wait_until(lambda: terminate(db, reads), PATIENCE)
    gate.unlink()
    query.wait_caught_up(db)
    assert (query.folder / "gate-0-1").exists()

    run = query.running.runId
    name = db.info.dbname
    for mode in ("fast", "immediate"):
        postgres.restart(mode=mode)
        with postgres.connect(name) as again:
            fill(again, *((200_001, 200_010) if mode == "fast" else (200_011, 200_020)))
            query.wait_caught_up(again)
    assert query.running.runId == run
    with postgres.connect(name) as again:
        changes = sink_rows(query.folder)
        assert assert_same_table(again, "orders", changes, ["id"]) == 100_020
        assert len(changes) == 100_030


def test_a_snapshot_whose_connection_is_lost_is_taken_again_at_the_restart(
    db: Db, query: Query
) -> None:
    """Tasks that come later cannot read it any more: the query fails, and says what to do."""
    fill(db, 1, 20_000)
    query.options["snapshotPartitions"] = "6"
    query.folder.mkdir()
    gate = query.folder / "gate"
    gate.touch()
    query.start(has_gate=True)
    query.wait(lambda: len(list(query.folder.glob("gate-*"))) == 2)
    assert terminate(db, "backend_type = 'walsender'") == 1
    gate.unlink()
    error = query.wait_failure()
    assert "[PENSTOCK_SNAPSHOT_GONE] Table 'public.orders'" in error
    assert "Start the query again: it takes a new snapshot" in error
    assert not committed(query.folder)

    db.execute("UPDATE orders SET name = NULL WHERE id % 3 = 0")
    db.execute("DELETE FROM orders WHERE id % 5 = 0")
    query.start()
    query.wait_snapshot()
    db.execute("UPDATE orders SET name = '' WHERE id % 7 = 0")
    query.wait_caught_up(db)
    assert assert_same_table(db, "orders", sink_rows(query.folder), ["id"]) == 16_000


def test_nothing_stays_on_the_server_if_so_wanted(db: Db, query: Query) -> None:
    """`dropOnStop`: slot and publication go with the query, also when a task is reading."""
    query.options["dropOnStop"] = "true"
    query.start(has_gate=True)
    query.wait_snapshot()
    assert kept(db) == (1, 1)
    (query.folder / "gate").touch()
    fill(db, 1, 100_000, LONG)
    query.wait((query.folder / "gate-0-0").exists)
    query.stop()
    wait_until(lambda: kept(db) == (0, 0), 30, lambda: kept(db))


def test_a_large_snapshot_under_writes_and_the_stream_are_one_table(
    spark: SparkSession, postgres: PostgresServer, url: str, db: Db, tmp_path: Path
) -> None:
    """By checksum over all columns; rows change, come, go and change their key all the time."""
    figures = run_large_snapshot(spark, postgres, db.info.dbname, tmp_path / "large", rows=100_000)
    assert figures.snapshot_rows > 90_000
    assert figures.changes > 0


def test_kills_of_the_driver_under_load_lose_nothing_and_double_nothing(
    postgres: PostgresServer, url: str, db: Db, tmp_path: Path
) -> None:
    """pgbench on several tables, a query on three; rebuilt from the streams they are the same."""
    db.execute("DROP TABLE orders")
    figures = run_with_kills(
        postgres,
        db.info.dbname,
        tmp_path,
        seconds=15,
        kills=2,
        rate=150,
        tables=("orders", "items", "pgbench_history"),
    )
    assert figures.kills == 2
    # The two that were held.
    assert figures.replays >= 2
    assert figures.transactions > 100
    assert all(figures.rows.values())
