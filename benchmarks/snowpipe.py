"""Arrow to Snowpipe Streaming: our JSON lines against the same SDK fed with `to_pylist()` dicts.

Both in one run, through the real SDK to the emulator, in turns; and the encoding alone.
"""

from __future__ import annotations

import decimal
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from penstock.emulator.snowflake.streaming import ROW_MODE_PROPERTIES
from penstock.snowflake.identifiers import TableName, quote
from penstock.snowflake.ndjson import ColumnPlan, Encoder
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.private_key import read_key
from penstock.snowflake.sink.sdk import new_client
from penstock.snowflake.types import snow_type
from penstock.testing.snowflake import SnowflakeEmulator, snowflake_emulator

_ROWS = 200_000
_BATCH = 10_000
_ROUNDS = 3
_SCHEMA = spark.StructType(
    [
        spark.StructField("ID", spark.LongType()),
        spark.StructField("N", spark.IntegerType()),
        spark.StructField("NOTE", spark.StringType()),
        spark.StructField("PRICE", spark.DecimalType(12, 2)),
        spark.StructField("AT", spark.TimestampType()),
        spark.StructField("IS_PAID", spark.BooleanType()),
        spark.StructField("WEIGHT", spark.DoubleType()),
        spark.StructField("DAY", spark.DateType()),
        spark.StructField("TOKEN", spark.StringType()),
        spark.StructField("CODE", spark.StringType()),
    ]
)
_COLUMNS = tuple(ColumnPlan(f.name, snow_type(f.name, f.dataType)) for f in _SCHEMA.fields)


def batches() -> list[pa.RecordBatch]:
    """Make the rows: ten columns, as a table of orders has them."""
    numbers = np.arange(_ROWS)
    micros = 1_767_225_600_000_000 + numbers * 1_250_000
    table = pa.table(
        {
            "ID": numbers,
            "N": (numbers % 1000).astype("int32"),
            "NOTE": [f"a note of some length, no. {i}" for i in numbers],
            "PRICE": pa.array(
                [decimal.Decimal(int(i) % 9900).scaleb(-2) for i in numbers], pa.decimal128(12, 2)
            ),
            "AT": pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "IS_PAID": numbers % 2 == 0,
            "WEIGHT": numbers * 1.5,
            "DAY": pa.array((18262 + numbers % 1000).astype("int32")).cast(pa.date32()),
            "TOKEN": [f"{i:032x}" for i in numbers],
            "CODE": [f"code-{i % 5000}" for i in numbers],
        }
    )
    return list(table.combine_chunks().to_batches(max_chunksize=_BATCH))


_ENCODER = Encoder(_COLUMNS)


def encode_lines(batch: pa.RecordBatch) -> list[Any]:
    """Encode as the sink does."""
    lines = _ENCODER.encode(batch).data.split(b"\n")
    lines.pop()
    return list(map(msgspec.Raw, lines))


def encode_dicts(batch: pa.RecordBatch) -> list[Any]:
    """Encode the usual way."""
    return list(batch.to_pylist())


def options_of(emulator: SnowflakeEmulator) -> SnowpipeOptions:
    """Lead to the emulator."""
    return SnowpipeOptions.parse(
        {
            "account": emulator.account,
            "user": emulator.user,
            "role": emulator.role,
            "database": emulator.database,
            "host": emulator.host,
            "port": str(emulator.port),
            "privateKeyFile": str(emulator.private_key_file),
            "table": "BENCH",
            "sdkProperties": ",".join(f"{key}={text}" for key, text in ROW_MODE_PROPERTIES.items()),
        }
    )


def send(
    client: Any, channel_name: str, rows: list[pa.RecordBatch], encode: Callable[..., list[Any]]
) -> tuple[float, float]:
    """Send all rows; seconds until the SDK has them, and until they are committed."""
    channel, _ = client.open_channel(channel_name)
    began = time.perf_counter()
    for number, batch in enumerate(rows, 1):
        channel.append_rows(encode(batch), f"{number - 1:06d}", f"{number:06d}")
    handed = time.perf_counter() - began
    channel.initiate_flush()
    while channel.get_channel_status().latest_committed_offset_token != f"{len(rows):06d}":
        time.sleep(0.05)
    committed = time.perf_counter() - began
    channel.close(wait_for_flush=False)
    return handed, committed


def main() -> None:
    """Measure and print."""
    rows = batches()
    print(f"{_ROWS} rows of 10 columns, batches of {_BATCH}, best of {_ROUNDS}")
    ways = {"JSON lines (ours)": encode_lines, "to_pylist() dicts": encode_dicts}
    encoder = msgspec.json.Encoder()
    best: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for name, encode in ways.items():
            began = time.perf_counter()
            for batch in rows:
                encoder.encode_lines(encode(batch))
            taken = time.perf_counter() - began
            best[name] = min(best.get(name, taken), taken)
    show("encoding alone, to the bytes that the SDK sends", best)
    with snowflake_emulator() as emulator:
        with emulator.connect() as connection, connection.cursor() as cursor:
            body = ", ".join(f"{quote(column.name)} {column.type}" for column in _COLUMNS)
            cursor.execute(f"CREATE TABLE BENCH ({body})")
        options = options_of(emulator)
        table = TableName(options.database, options.schema, "BENCH")
        client = new_client(options, table, read_key(options))
        handed: dict[str, float] = {}
        committed: dict[str, float] = {}
        for turn in range(_ROUNDS):
            for number, (name, encode) in enumerate(ways.items()):
                taken, whole = send(client, f"B{turn}_{number}", rows, encode)
                handed[name] = min(handed.get(name, taken), taken)
                committed[name] = min(committed.get(name, whole), whole)
        client.close(wait_for_flush=False)
    show("through the SDK, until it has the rows", handed)
    show("through the SDK, until the emulator has committed them", committed)


def show(title: str, seconds: dict[str, float]) -> None:
    """Print one comparison."""
    print(f"\n{title}")
    for name, taken in seconds.items():
        print(f"  {name:<20} {_ROWS / taken:>12,.0f} rows/s")
    ours, theirs = seconds.values()
    print(f"  {'ratio':<20} {theirs / ours:>12.1f}")


if __name__ == "__main__":
    main()
