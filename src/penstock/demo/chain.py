"""The demo's last chapter: the PostgreSQL table followed by one in a local Snowflake."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.demo.show import Show
from penstock.testing import SnowflakeEmulator

CHANGES = (
    "UPDATE customers SET city = 'Bregenz' WHERE id BETWEEN 1001 AND 1500",
    "DELETE FROM customers WHERE city = 'Linz' AND id % 2 = 0",
    "UPDATE customers SET id = id + 50000 WHERE id < 10",
)
_TOTALS = "SELECT city, COUNT(*), SUM(id) FROM customers GROUP BY city ORDER BY city"


def start_chain(
    spark: SparkSession, url: str, folder: Path, options: dict[str, str]
) -> StreamingQuery:
    """Stream the table and its changes into Snowflake, and merge them there by key."""
    changes = (
        spark.readStream.format("postgres_cdc")
        .option("url", url)
        .option("table", "public.customers")
        .option("slot", "to_snowflake")
        .load()
    )
    query = (
        changes.writeStream.format("snowpipe")
        .options(**options)
        .option("table", "customers")
        .option("createTable", "true")
        .option("merge", "true")
        .option("keyColumns", "id")
        .option("checkpointLocation", f"{folder}/snowflake")
        .trigger(availableNow=True)
        .start()
    )
    return query  # noqa: RET504 - the lines above are shown, this one is not


def show_chain(
    show: Show,
    spark: SparkSession,
    folder: Path,
    connection: psycopg.Connection[Any],
    url: str,
    snowflake: SnowflakeEmulator,
) -> None:
    """Tell the chapter, and check that both databases say the same."""
    options = snowflake.sink_options()
    show.line(f"It serves SQL and Snowpipe Streaming on https://{snowflake.host}:{snowflake.port},")
    show.line("for the official connector and the official SDK, which the sink uses:")
    show.code(start_chain)
    _follow(start_chain(spark, url, folder, options))
    show.line("The snapshot is merged. The application goes on, and the query runs again:")
    for statement in CHANGES:
        show.line(f"  {statement}")
        connection.execute(statement.encode())
    _follow(start_chain(spark, url, folder, options))
    with snowflake.connect() as session, session.cursor() as cursor:
        cursor.execute(_TOTALS)
        found = [tuple(row) for row in cursor.fetchall()]
    expected = [
        (city, count, int(total)) for city, count, total in connection.execute(_TOTALS).fetchall()
    ]
    show.line(f"In Snowflake, {_TOTALS}:")
    show.table(("city", "customers", "sum of ids"), found)
    landed = sum(channel["rows_inserted"] for channel in snowflake.channels().values())
    show.line(f"{landed:,} rows landed; one MERGE for each micro-batch applied them.")
    show.check("the table in Snowflake says what PostgreSQL says", holds=found == expected)


def _follow(query: StreamingQuery) -> None:
    """Wait for the end of a query; not inside Spark, whose connection Ctrl-C would break."""
    while query.isActive:
        time.sleep(0.1)
    # Raises what ended it, if that was an error.
    query.awaitTermination()
