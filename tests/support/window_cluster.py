"""A driver with a stateful query, on a cluster of executor processes: counts and sums by window.

The program behind `source_cluster.driver(program=...)`; it understands `start`, `progress`, `stop`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.support.source_cluster import MASTER
from tests.support.spark import spark_session

WINDOW_MS = 500
# More than any message is late when an executor dies.
WATERMARK = "1 hour"


def _write(folder: Path, frame: DataFrame, number: int) -> None:
    rows = [(row["start"], row["count"], row["sum"]) for row in frame.collect()]
    part = folder / "out" / f"{number}.part"
    part.write_text(json.dumps(rows))
    part.rename(part.with_suffix(".json"))


def _start(spark: SparkSession, folder: Path, options: dict[str, str]) -> Any:
    (folder / "out").mkdir(exist_ok=True)
    number = f.col("data").cast("string").cast("bigint")
    window = f.window("event_time", f"{WINDOW_MS} milliseconds")
    frame = (
        spark.readStream.format("pubsub")
        .options(**options)
        .load()
        .select("event_time", number.alias("number"))
        .withWatermark("event_time", WATERMARK)
        .groupBy(window.alias("window"))
        .agg(f.count("*").alias("count"), f.sum("number").alias("sum"))
        .select(f.unix_millis("window.start").alias("start"), "count", "sum")
    )
    writer = frame.writeStream.foreachBatch(lambda batch, n: _write(folder, batch, n))
    # A window is written once, when the watermark has passed it.
    writer = writer.outputMode("append")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def main() -> None:
    """Be the driver until standard input ends."""
    settings = json.loads(sys.argv[1])
    query: Any = None
    with spark_session(settings.pop("spark.master", MASTER), **settings) as spark:
        print(json.dumps({"pid": os.getpid()}), flush=True)  # noqa: T201 - the answer
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "start":
                query = _start(spark, Path(command["folder"]), command["options"])
            elif command["do"] == "stop":
                query.stop()
            error = query.exception()
            answer = {"error": None if error is None else str(error), "status": query.status}
            print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
