"""The second half of the demo: a streaming query reads, aggregates and acknowledges."""

from __future__ import annotations

import json
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.streaming.query import StreamingQuery
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.demo.show import Show
from penstock.testing import PubSubEmulator

# Of the source's measurements, those that tell the story.
_SHOWN = ("agents", "streams", "received", "redelivered", "backoffs", "agentMemoryBytes")


def start_totals(spark: SparkSession, folder: Path) -> StreamingQuery:
    """Drain the subscription; messages are acknowledged when Spark has committed their batch."""
    messages = (
        spark.readStream.format("pubsub")
        .option("projectId", "demo")
        .option("subscriptionId", "orders-sub")
        .load()
    )
    order = F.from_json(F.decode("data", "utf-8"), "order_id long, cents long")
    totals = messages.groupBy(F.col("attributes")["kind"].alias("kind")).agg(
        F.count("*").alias("orders"), F.sum(order["cents"]).alias("cents")
    )
    query = (
        totals.writeStream.format("memory")
        .queryName("totals")
        .outputMode("complete")
        .option("checkpointLocation", f"{folder}/totals-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    return query  # noqa: RET504 - the lines above are shown, this one is not


def watch_totals(
    show: Show, spark: SparkSession, query: StreamingQuery, emulator: PubSubEmulator, name: str
) -> None:
    """Follow the query by what it has acknowledged; show its totals and measurements."""
    bar = (
        TextColumn("acknowledged"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*bar, console=show.console) as progress:
        task = progress.add_task("", total=emulator.counters(name).published)
        while query.isActive:
            progress.update(task, completed=emulator.counters(name).acked)
            # Not a wait inside Spark: Ctrl-C would break its connection in the middle of a call.
            time.sleep(0.2)
        # Raises what ended the query, if it was not the end of the messages.
        query.awaitTermination()
        progress.update(task, completed=emulator.counters(name).acked)
    rows = spark.table("totals").orderBy("kind").collect()
    show.table(("kind", "orders", "cents"), ((row.kind, row.orders, row.cents) for row in rows))
    reports = [json.loads(r["sources"][0]["latestOffset"] or "{}") for r in query.recentProgress]
    measured: dict[str, int] = next((r for r in reversed(reports) if "received" in r), {})
    show.line("What the source measured, as query.lastProgress shows it:")
    show.table(_SHOWN, [tuple(measured.get(key, 0) for key in _SHOWN)])
    counted = emulator.counters(name)
    show.check(
        f"every one of {counted.published:,} messages was counted",
        holds=sum(row.orders for row in rows) >= counted.published,
    )
    show.check("all of them are acknowledged, none is left", holds=counted.unacked == 0)
