"""The snapshot of a PostgreSQL table as typed Arrow, against a bare ADBC COPY of it, in one run.

Both read the same ten columns of the same table. Ours also casts and adds the columns of the
change, and reads one range, or two at once in two processes as two Spark tasks would.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable

import psycopg

from penstock.postgres.connection import ConnectionSettings, arrow_batches, connect_arrow
from penstock.postgres.options import PostgresCdcOptions
from penstock.postgres.source.server import StreamServer
from penstock.postgres.source.task import SnapshotPartition, read_partition
from penstock.testing import postgres_server

_TABLE = """
CREATE TABLE items (
  id int8 PRIMARY KEY, quantity int4, name text, price numeric(12,2), at timestamptz,
  is_open bool, weight float8, day date, code uuid, kind varchar(20))
"""
_ROWS = """
INSERT INTO items
SELECT g, g %% 1000, 'item number ' || g, g / 7.0, timestamptz '2026-01-01' + g * interval '1 s',
       g %% 2 = 0, g * 1.5, date '2026-01-01' + (g %% 365)::int, gen_random_uuid(),
       'kind ' || g %% 20
  FROM generate_series(1, %s::int8) g
"""


def _count(partition: SnapshotPartition) -> int:
    return sum(batch.num_rows for batch in read_partition(partition))


def _partitions(url: str, count: int) -> list[SnapshotPartition]:
    options = {"url": url, "table": "public.items", "snapshotMode": "only"}
    parsed = PostgresCdcOptions.parse({**options, "snapshotPartitions": str(count)})
    server = StreamServer(parsed)
    try:
        server.prepare()
        return server.begin_snapshot()
    finally:
        server.close()


def _bare(settings: ConnectionSettings) -> int:
    connection = connect_arrow(settings)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM public.items")
            return sum(batch.num_rows for batch in arrow_batches(cursor))
    finally:
        connection.close()


def _rate(rows: int, read: Callable[[], int]) -> float:
    """Rows per second, the better of three."""
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        found = read()
        rates.append(found / (time.perf_counter() - began))
        if found != rows:
            raise RuntimeError(f"{found} rows of {rows}")
    return max(rates)


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    rows = arguments.rows
    with postgres_server({"shared_buffers": "512MB"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(_TABLE)
            connection.execute(_ROWS, [rows])
            connection.execute("VACUUM ANALYZE items")
        settings = ConnectionSettings.parse(server.url())
        bare = _rate(rows, lambda: _bare(settings))
        (whole,) = _partitions(server.url(), 1)
        one = _rate(rows, lambda: _count(whole))
        halves = _partitions(server.url(), 2)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            # Imports are not the table's business.
            pool.map(_count, halves)
            two = _rate(rows, lambda: sum(pool.map(_count, halves)))
    print(f"{'bare ADBC COPY, one stream':32} {bare:12,.0f} rows/s")
    print(f"{'snapshot, one range':32} {one:12,.0f} rows/s")
    print(f"{'snapshot, two ranges at once':32} {two:12,.0f} rows/s")
    print(f"{'one range / bare':32} {one / bare:12.0%}")
    print(f"{'two ranges / bare':32} {two / bare:12.0%}")


if __name__ == "__main__":
    main()
