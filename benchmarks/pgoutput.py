"""WAL to Arrow: the decoder against a per-row one written the usual way, on the same slot."""

from __future__ import annotations

import datetime
import decimal
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from penstock.postgres.pgoutput import Decoder, RelationRows
from penstock.testing.postgres import PostgresServer, postgres_server

_ROWS = 200_000
_ROUNDS = 3
_PEEK = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes('bench', NULL, NULL,"
    " 'proto_version', '1', 'publication_names', 'bench')"
)
_TABLE = """
    CREATE TABLE bench (id int8 PRIMARY KEY, n int4, note text, price numeric(12,2), at timestamptz,
                        is_paid bool, weight float8, day date, token uuid, code varchar(40))
"""
_FILL = f"""
    INSERT INTO bench SELECT i, i % 1000, 'a note of some length, no. ' || i, i % 99 / 100.0,
        '2026-01-01 00:00:00+00'::timestamptz + i * interval '1.25 seconds', i % 2 = 0, i * 1.5,
        date '2020-01-01' + i % 1000, gen_random_uuid(), 'code-' || i % 5000
    FROM generate_series(1, {_ROWS}) i
"""  # noqa: S608 - the number is ours
_TYPES = (
    *(pa.int64(), pa.int32(), pa.string(), pa.decimal128(12, 2), pa.timestamp("us", tz="UTC")),
    *(pa.bool_(), pa.float64(), pa.date32(), pa.string(), pa.string()),
)
_NAMES = ("id", "n", "note", "price", "at", "is_paid", "weight", "day", "token", "code")
_SCHEMA = pa.schema(list(zip(_NAMES, _TYPES, strict=True)))


def read_slot(url: str) -> Iterator[pa.RecordBatch]:
    """Fetch the slot as the source does: batches, while the server sends the next ones."""
    with (
        adbc_driver_postgresql.dbapi.connect(url) as connection,
        connection.cursor() as cursor,
    ):
        # Without parameters: ADBC reads only such a query in batches, through COPY.
        cursor.execute(_PEEK)
        yield from cursor.fetch_record_batch()


def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[RelationRows]:
    """Decode to columns of text."""
    decoder = Decoder(0, 2**64 - 1)
    for batch in batches:
        yield from decoder.feed(batch)
    decoder.finish()


def cast(rows: Iterable[RelationRows]) -> pa.Table:
    """Give the columns their types with Arrow's own casts."""
    return pa.Table.from_batches([_cast(part) for part in rows])


def _cast(part: RelationRows) -> pa.RecordBatch:
    columns = []
    for text, kind in zip(part.columns, _TYPES, strict=True):
        if kind == pa.bool_():
            columns.append(pc.equal(text, "t"))
        else:
            columns.append(text.cast(kind))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


_PARSERS: tuple[Callable[[str], Any], ...] = (
    *(int, int, str, decimal.Decimal, datetime.datetime.fromisoformat, lambda text: text == "t"),
    *(float, datetime.date.fromisoformat, lambda text: str(uuid.UUID(text)), str),
)


def decode_per_row(messages: list[bytes]) -> pa.Table:
    """Do what decoders in Python do: read a message, build its values, collect rows."""
    rows: list[tuple[Any, ...]] = []
    for message in messages:
        if message[0] != ord("I"):
            continue
        (count,) = struct.unpack_from(">H", message, 6)
        at, values = 8, []
        for parser in _PARSERS[:count]:
            if message[at] == ord("t"):
                (length,) = struct.unpack_from(">I", message, at + 1)
                values.append(parser(message[at + 5 : at + 5 + length].decode()))
                at += 5 + length
            else:
                values.append(None)
                at += 1
        rows.append(tuple(values))
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def fetch_per_row(url: str) -> list[bytes]:
    """Fetch the slot with psycopg."""
    with psycopg.connect(url) as connection, connection.cursor(binary=True) as cursor:
        cursor.execute(_PEEK.encode())
        return [data for (data,) in cursor.fetchall()]


def best(work: Callable[[], Any]) -> float:
    """Give the rows per second of the best of a few rounds."""
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return _ROWS / min(seconds)


def prepare(server: PostgresServer) -> None:
    """Put the rows into a slot."""
    for statement in (
        _TABLE,
        "CREATE PUBLICATION bench FOR TABLE bench",
        "SELECT pg_create_logical_replication_slot('bench', 'pgoutput')",
        _FILL,
    ):
        server.execute(statement)


def main() -> None:
    """Print rows per second of each step and of both ways, and the ratios."""
    with postgres_server() as server:
        prepare(server)
        url = server.url()
        batches, messages = list(read_slot(url)), fetch_per_row(url)
        rows = list(decode(batches))
        assert cast(rows).equals(decode_per_row(messages)), "both ways must give the same table"
        steps = {
            "fetch, ADBC": best(lambda: list(read_slot(url))),
            "decode to text columns": best(lambda: list(decode(batches))),
            "cast to types": best(lambda: cast(rows)),
            "WAL to text columns": best(lambda: list(decode(read_slot(url)))),
            "WAL to typed columns": best(lambda: cast(decode(read_slot(url)))),
            "fetch, psycopg": best(lambda: fetch_per_row(url)),
            "decode per row, typed": best(lambda: decode_per_row(messages)),
            "WAL to typed, per row": best(lambda: decode_per_row(fetch_per_row(url))),
        }
    for name, rate in steps.items():
        print(f"{name:32} {rate:12,.0f} rows/s")
    ratio = steps["WAL to typed columns"] / steps["WAL to typed, per row"]
    print(f"{'WAL to typed: columns / per row':32} {ratio:12.1f} x")
    ours = 1 / (1 / steps["decode to text columns"] + 1 / steps["cast to types"])
    print(
        f"{'after the fetch: columns / per row':32} {ours / steps['decode per row, typed']:12.1f} x"
    )


if __name__ == "__main__":
    main()
