"""The driver program: one streaming query, told what to do by lines; runs in a process of its own.

Commands are words on standard input, one a line; each is answered by one line of JSON. The query's
sink writes one file for each batch, and replaces it when the batch is run again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock._core.java import ensure_java


def _write(out: Path, frame: DataFrame, number: int) -> None:
    rows = frame.select("data", "message_id").toArrow()
    file = out / f"{number:08d}.arrow"
    if not rows.num_rows and not file.exists():
        return
    part = file.with_suffix(".part")
    with part.open("wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    part.rename(file)


class Program:
    """A session and its query."""

    def __init__(self, spark: SparkSession, plan: dict[str, Any]) -> None:
        self._spark = spark
        self._plan = plan
        self._query: Any = None

    def start(self) -> None:
        """Start the query from its checkpoint."""
        frame = self._spark.readStream.format("pubsub").options(**self._plan["options"]).load()
        writer = frame.writeStream.option("checkpointLocation", self._plan["checkpoint"])
        if self._plan["out"]:
            out = Path(self._plan["out"])
            writer = writer.foreachBatch(lambda batch, number: _write(out, batch, number))
        else:
            writer = writer.format("noop")
        self._query = writer.start()

    def stop(self) -> None:
        """Stop the query in order."""
        if self._query is not None:
            self._query.stop()

    def state(self) -> dict[str, Any]:
        """Tell how the query is."""
        if self._query is None:
            return {"is_active": False, "error": None, "batch": -1, "metrics": {}}
        error = self._query.exception()
        progress = self._query.lastProgress
        told = progress["sources"][0]["latestOffset"] if progress else None
        return {
            "is_active": self._query.isActive,
            "error": None if error is None else str(error),
            "batch": progress["batchId"] if progress else -1,
            "metrics": json.loads(told) if told else {},
        }


def _session(settings: dict[str, str]) -> SparkSession:
    ensure_java()
    builder = SparkSession.builder.appName("penstock-chaos")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def main() -> None:
    """Answer commands until standard input ends."""
    plan = json.loads(sys.argv[1])
    spark = _session(plan["settings"])
    program = Program(spark, plan)
    try:
        for line in sys.stdin:
            command = line.strip()
            if command == "start":
                program.start()
            elif command == "stop":
                program.stop()
            sys.stdout.write(json.dumps(program.state()) + "\n")
            sys.stdout.flush()
    finally:
        program.stop()
        spark.stop()


if __name__ == "__main__":
    main()
