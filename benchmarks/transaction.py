"""One large transaction in PostgreSQL, read by a streaming query: what it takes of memory and time.

Twice in one run, a small and a large one: what grows with the transaction is seen as a difference.
Memory is what a process has for itself (USS), its highest value while the query reads.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.spark import session
from penstock.postgres.lsn import parse_lsn
from penstock.testing import PostgresServer, postgres_server

_TABLE = "CREATE TABLE items (id int8 PRIMARY KEY, at timestamptz, price numeric(12,2), name text)"
_ROWS = """
INSERT INTO items SELECT g, now(), g / 7.0, 'item number ' || g
  FROM generate_series((SELECT count(*) FROM items) + 1, (SELECT count(*) FROM items) + {rows}) g
"""
_SLOT = "bench"
_SPILLED = f"SELECT spill_bytes FROM pg_stat_replication_slots WHERE slot_name = '{_SLOT}'"  # noqa: S608


class Peaks:
    """The highest memory of each kind of process while a `with` block runs."""

    def __init__(self, postmaster: psutil.Process) -> None:
        self._postmaster = postmaster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peaks")
        self.bytes: dict[str, int] = defaultdict(int)

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            for kind, process in self._processes():
                with contextlib.suppress(psutil.Error):
                    used = process.memory_full_info().uss
                    self.bytes[kind] = max(self.bytes[kind], used)

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        found = [("PostgreSQL backend", one) for one in self._postmaster.children()]
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "pyspark.daemon" in words:
                    found.append(("Python process of Spark", process))
                elif words and words[0].endswith("java"):
                    found.append(("JVM", process))
        return found

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._ended.set()
        self._thread.join()


@dataclass(frozen=True)
class Read:
    """How a transaction was read."""

    seconds: float
    wal_bytes: int
    spilled_bytes: int
    peaks: dict[str, int]


def _read(spark: SparkSession, server: PostgresServer, folder: str, rows: int) -> Read:
    """Write one transaction, and read it with a query that goes on from its checkpoint."""
    ((before,),) = server.execute("SELECT pg_current_wal_flush_lsn()::text")
    ((spilled,),) = server.execute(_SPILLED)
    server.execute(_ROWS.format(rows=rows))
    ((end,),) = server.execute("SELECT pg_current_wal_flush_lsn()::text")
    with Peaks(psutil.Process(server.pid)) as peaks:
        began = time.perf_counter()
        query = _start(spark, server, folder)
        query.awaitTermination()
        seconds = time.perf_counter() - began
        seen = [report["numInputRows"] for report in query.recentProgress]
    if sum(seen) != rows:
        raise RuntimeError(f"{sum(seen)} rows of {rows}")
    ((after,),) = server.execute(_SPILLED)
    return Read(
        seconds, parse_lsn(end) - parse_lsn(before), int(after) - int(spilled), dict(peaks.bytes)
    )


def _start(spark: SparkSession, server: PostgresServer, folder: str) -> StreamingQuery:
    frame = spark.readStream.format("postgres_cdc").options(
        url=server.url(), table="public.items", slot=_SLOT
    )
    writer = frame.load().writeStream.format("noop").option("checkpointLocation", folder)
    return writer.trigger(availableNow=True).start()


def main() -> None:
    """Print time and memory of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    counts = (arguments.rows // 100, arguments.rows)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        postgres_server() as server,
        session() as spark,
    ):
        server.execute(_TABLE)
        checkpoint = str(Path(folder) / "checkpoint")
        # The snapshot of nothing: makes slot and publication, and starts all processes.
        _start(spark, server, checkpoint).awaitTermination()
        reads = [_read(spark, server, checkpoint, rows) for rows in counts]
    for rows, read in zip(counts, reads, strict=True):
        print(f"{'one transaction of':32} {rows:12,} rows, {read.wal_bytes / 1e6:,.0f} MB of WAL")
        print(f"{'    read in':32} {read.seconds:12.1f} s")
        print(f"{'    spilled by the server':32} {read.spilled_bytes / 1e6:12,.0f} MB on its disk")
        for kind, used in read.peaks.items():
            print(f"{'    peak of a ' + kind:40} {used / 1e6:8,.0f} MB")


if __name__ == "__main__":
    main()
