"""A driver with queries from PostgreSQL tables into Snowflake tables; told what to do by lines.

Run as a program it reads commands as JSON lines from standard input and answers each with one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from tests.support.spark import spark_session

PROGRAM = "tests.support.chain_driver"


def _start(spark: SparkSession, command: dict[str, Any]) -> Any:
    frame = spark.readStream.format("postgres_cdc").options(**command["source"]).load()
    writer = frame.writeStream.format("snowpipe").options(**command["sink"])
    writer = writer.option("checkpointLocation", f"{command['folder']}/checkpoint")
    return writer.trigger(processingTime=command["trigger"]).start()


def _start_surely(spark: SparkSession, command: dict[str, Any]) -> Any:
    """Start a query, again if its process did not come up within the 10 s that Spark gives it."""
    while True:
        query = _start(spark, command)
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)
        error = query.exception()
        if error is None or "Python worker failed to connect back" not in str(error):
            return query


def main() -> None:
    """Be the driver until standard input ends."""
    settings = json.loads(sys.argv[1])
    queries: dict[str, Any] = {}
    with spark_session(settings.pop("spark.master"), **settings) as spark:
        print(json.dumps({"pid": os.getpid()}), flush=True)  # noqa: T201 - the answer
        for line in sys.stdin:
            command = json.loads(line)
            folder = command["folder"]
            if command["do"] == "start":
                queries[folder] = _start_surely(spark, command)
            if command["do"] == "stop":
                queries[folder].stop()
            error = queries[folder].exception()
            answer = {"error": None if error is None else str(error)}
            print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
