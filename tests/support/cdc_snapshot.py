"""The snapshot of a large table while it is written to, then the stream: are they one table?

`python -m tests.support.cdc_snapshot 2000000` runs it with so many rows and prints the figures.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.postgres.lsn import parse_lsn
from penstock.testing.postgres import PostgresServer, postgres_server
from tests.support.cdc_driver import committed, committed_lsn, sink_rows, start_query
from tests.support.cdc_load import Load
from tests.support.cdc_table import assert_same_table
from tests.support.spark import spark_session, wait_until

_TABLE = """
CREATE TABLE large (id int8 PRIMARY KEY, customer int4, amount numeric(12,2), rate float8,
                    is_paid bool, placed timestamptz, day date, token uuid, city text, note text)
"""
_ROWS = """
INSERT INTO large SELECT g, g % 1000, g / 8.0, g / 3.0, g % 2 = 0, now(), current_date,
    md5(g::text)::uuid, 'city ' || g % 50,
    CASE WHEN g % 4 > 0 THEN repeat('x', (g % 60)::int) END
  FROM generate_series(1, {rows}) g
"""
# Rows move to the table's end, come and go everywhere in it.
_WRITES = r"""
\set one random(1, {rows})
\set two random(1, {rows})
\set more random({rows}, {rows} * 2)
UPDATE large SET amount = amount + 1, note = NULL WHERE id = :one;
DELETE FROM large WHERE id = :two;
INSERT INTO large (id, city) VALUES (:two, 'again') ON CONFLICT DO NOTHING;
INSERT INTO large (id, city) VALUES (:more, '') ON CONFLICT DO NOTHING;
UPDATE large SET id = -id WHERE id = :one AND NOT EXISTS (SELECT FROM large o WHERE o.id = -:one);
"""
_PATIENCE_SECONDS = 300.0


@dataclass
class Figures:
    """What a run has seen."""

    snapshot_rows: int
    snapshot_seconds: float
    snapshot_rows_per_second: int
    # Committed by the load, from before the snapshot until after it.
    transactions: int
    # In the stream after the snapshot.
    changes: int
    rows: int
    # Of the largest Python process that Spark has started.
    worker_peak_bytes: int


class _Peak:
    """The largest memory of any worker, looked at while a `with` block runs."""

    def __init__(self) -> None:
        self.value = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak")

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, OSError):
                    if "pyspark.daemon" in process.cmdline():
                        self.value = max(self.value, process.memory_info().rss)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._ended.set()
        self._thread.join()


def run_large_snapshot(
    spark: SparkSession,
    server: PostgresServer,
    database: str,
    folder: Path,
    *,
    rows: int,
    rate: int = 200,
) -> Figures:
    """Take the snapshot of a new table under load, read on to its end, check; give figures."""
    folder.mkdir(parents=True, exist_ok=True)
    server.execute(_TABLE, database)
    server.execute(_ROWS.format(rows=rows), database)
    script = folder / "writes.sql"
    script.write_text(_WRITES.format(rows=rows))
    options = {
        "url": server.url(database),
        "table": "large",
        "heartbeatInterval": "1s",
        "snapshotPartitions": "8",
    }
    with server.connect(database) as db, _Peak() as peak:
        writes = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'large'"
        with Load(server, database, [f"--file={script}"], rate) as load:
            wait_until(lambda: db.execute(writes).fetchone() != (0,), _PATIENCE_SECONDS)
            began = time.monotonic()
            query = start_query(spark, folder, options)
            try:

                def is_done() -> bool:
                    assert query.exception() is None, str(query.exception())
                    return bool(committed(folder))

                wait_until(is_done, _PATIENCE_SECONDS)
            except BaseException:
                query.stop()
                raise
            seconds = time.monotonic() - began
        try:
            row = db.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None

            def is_caught_up() -> bool:
                assert query.exception() is None, str(query.exception())
                return committed_lsn(folder) >= parse_lsn(row[0])

            wait_until(is_caught_up, _PATIENCE_SECONDS)
        finally:
            query.stop()
        changes = sink_rows(folder)
        taken = pc.sum(pc.equal(changes["_op"], "snapshot")).as_py()
        return Figures(
            snapshot_rows=taken,
            snapshot_seconds=round(seconds, 1),
            snapshot_rows_per_second=round(taken / seconds),
            transactions=load.transactions,
            changes=len(changes) - taken,
            rows=assert_same_table(db, "large", changes, ["id"]),
            worker_peak_bytes=peak.value,
        )


def main() -> None:
    """Run it by hand."""
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_server() as server,
        spark_session("local[2, 4]") as spark,
    ):
        figures = run_large_snapshot(
            spark, server, server.create_database(), Path(folder), rows=int(sys.argv[1])
        )
    print(json.dumps(asdict(figures), indent=1))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
