"""The demo's chapter on PostgreSQL: a table and its changes arrive in Spark, from a real server."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.demo.show import Show
from penstock.testing import postgres_server

ROWS = 5_000
CHANGES = (
    "UPDATE customers SET city = 'Graz' WHERE id <= 1000",
    "DELETE FROM customers WHERE id > 4000",
    "UPDATE customers SET id = id + 10000 WHERE id = 7",
    "INSERT INTO customers SELECT g, 'new ' || g, 'Linz' FROM generate_series(20001, 20500) g",
)
_LOOK_SECONDS = 0.1
_LONGEST_SECONDS = 90.0

Row = dict[str, Any]


def make_table(connection: psycopg.Connection[Any]) -> None:
    """Fill a table, as an application would have."""
    connection.execute("CREATE TABLE customers (id int8 PRIMARY KEY, name text, city text)")
    connection.execute(
        "INSERT INTO customers SELECT g, 'customer ' || g, 'Wien' FROM generate_series(1, %s) g",
        [ROWS],
    )


class Replica:
    """A copy of the table, kept up to date by the stream."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.counts: dict[str, int] = {}
        self.batches: list[tuple[int, int]] = []

    def apply(self, batch: DataFrame, number: int) -> None:
        """Apply a micro-batch in the order of the WAL."""
        changes = batch.orderBy("_lsn", "_ordinal").toArrow().to_pylist()
        for change in changes:
            self.counts[change["_op"]] = self.counts.get(change["_op"], 0) + 1
            if change["_op"] == "delete":
                self.rows.pop(change["id"], None)
            else:
                self.rows[change["id"]] = {name: change[name] for name in ("id", "name", "city")}
        if changes:
            self.batches.append((number, len(changes)))


def start_changes(spark: SparkSession, url: str, folder: Path, replica: Replica) -> StreamingQuery:
    """Stream the table, then its changes, into the copy."""
    customers = (
        spark.readStream.format("postgres_cdc")
        .option("url", url)
        .option("table", "public.customers")
        .load()
    )
    query = (
        customers.writeStream.foreachBatch(replica.apply)
        .option("checkpointLocation", f"{folder}/customers")
        .start()
    )
    return query  # noqa: RET504 - the lines above are shown, this one is not


def show_changes(
    show: Show, spark: SparkSession, folder: Path, stack: ExitStack
) -> tuple[psycopg.Connection[Any], str]:
    """Tell the chapter, and check that copy and table are the same; gives the way to the table."""
    started = time.monotonic()
    server = stack.enter_context(postgres_server())
    url = server.url()
    seconds = time.monotonic() - started
    show.line(f"A PostgreSQL {server.version} from a wheel is up after {seconds:.1f} s.")
    connection = stack.enter_context(psycopg.connect(url, autocommit=True))
    make_table(connection)
    show.line(f"It has a table with {ROWS:,} customers. Keep a copy of it in Spark:")
    show.code(start_changes)
    replica = Replica()
    query = start_changes(spark, url, folder, replica)
    try:
        _wait(query, lambda: replica.counts.get("snapshot") == ROWS)
        show.line("The snapshot is there. Now the application changes the table:")
        for statement in CHANGES:
            show.line(f"  {statement}")
            connection.execute(statement.encode())
        table = _table(connection)
        _wait(query, lambda: replica.rows == table)
    finally:
        query.stop()
    show.table(("what came", "rows"), sorted(replica.counts.items()))
    show.line(f"in {len(replica.batches)} micro-batches, each of which can be run again exactly.")
    show.check(
        f"the copy of the PostgreSQL table is right: {len(table):,} rows",
        holds=replica.rows == table,
    )
    return connection, url


def _table(connection: psycopg.Connection[Any]) -> dict[int, Row]:
    rows = connection.execute("SELECT id, name, city FROM customers").fetchall()
    return {row[0]: dict(zip(("id", "name", "city"), row, strict=True)) for row in rows}


def _wait(query: StreamingQuery, is_done: Callable[[], bool]) -> None:
    """Wait for the stream; not inside Spark, whose connection Ctrl-C would break."""
    end = time.monotonic() + _LONGEST_SECONDS
    while not is_done() and time.monotonic() < end:
        if not query.isActive:
            # Raises what ended it.
            query.awaitTermination()
        time.sleep(_LOOK_SECONDS)
