"""Queries on PostgreSQL tables whose sink knows batches: one file folder per batch.

Run as a program it is a driver: it reads commands as JSON lines from standard input and answers
each with one. Imported, it gives `start_query` for the test's own session, and what such a query
leaves in its folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from penstock.postgres.lsn import parse_lsn
from tests.support.spark import spark_session

PROGRAM = "tests.support.cdc_driver"


def _gate(folder: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make a step that holds tasks at their first rows, as long as the file `gate` is there.

    A task that waits there has a file `gate-<partition>-<attempt>`.
    """

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            (folder / f"gate-{context.partitionId()}-{context.attemptNumber()}").touch()
            while (folder / "gate").exists():
                time.sleep(0.02)
            yield batch

    return step


def start_query(
    spark: SparkSession,
    folder: Path,
    options: dict[str, str],
    trigger: dict[str, Any] | None = None,
    *,
    has_gate: bool = False,
) -> Any:
    """Start a query that writes each batch to `out/<number>`; one run again replaces the first.

    With a file `hold` in the folder it stops when a batch with changes is written and not yet in
    Spark's commit log, and makes the file `held`, which has the batch's number.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def write(frame: DataFrame, number: int) -> None:
        out = folder / "out" / str(number)
        frame.write.mode("overwrite").parquet(str(out))
        rows = sum(pq.read_metadata(file).num_rows for file in out.glob("*.parquet"))
        with (folder / "runs").open("a") as log:
            log.write(f"{number} {rows}\n")
        if rows and (folder / "hold").exists():
            (folder / "held").write_text(str(number))
            while (folder / "hold").exists():
                time.sleep(0.02)

    frame = spark.readStream.format("postgres_cdc").options(**options).load()
    if has_gate:
        with warnings.catch_warnings():
            # Spark's word on the version of pandas, which is not used here.
            warnings.simplefilter("ignore", FutureWarning)
            frame = frame.mapInArrow(_gate(folder), frame.schema)
    writer = frame.writeStream.foreachBatch(write).trigger(
        **(trigger or {"processingTime": "0 seconds"})
    )
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def runs(folder: Path) -> list[tuple[int, int]]:
    """Give number and rows of each batch that was written, also of those written again."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / "runs").read_text().splitlines()
        return [(int(number), int(rows)) for number, rows in map(str.split, lines)]
    return []


def committed(folder: Path) -> dict[str, Any]:
    """Give the end of the last batch in Spark's commit log; empty before the first."""
    commits = folder / "checkpoint" / "commits"
    done = [int(path.name) for path in commits.glob("[0-9]*")] if commits.exists() else []
    if not done:
        return {}
    # A version, Spark's own metadata, and the offset of the only source.
    line = (folder / "checkpoint" / "offsets" / str(max(done))).read_text().splitlines()[2]
    offset: dict[str, Any] = json.loads(line)
    return offset


def committed_lsn(folder: Path) -> int:
    """Give the position up to which everything is in the sink and in Spark's commit log."""
    return parse_lsn(committed(folder).get("lsn", "0/0"))


def sink_batch(folder: Path, number: int, where: str = "out") -> pa.Table:
    """Read one batch of the sink, one that has rows."""
    return pa.concat_tables(
        [
            pq.read_table(file, coerce_int96_timestamp_unit="us", partitioning=None)
            for file in sorted((folder / where / str(number)).glob("*.parquet"))
        ]
    )


def sink_rows(folder: Path) -> pa.Table:
    """Read the whole sink, batch by batch; a batch without tasks has no file."""
    written = {path.parent.name for path in (folder / "out").glob("*/*.parquet")}
    return pa.concat_tables([sink_batch(folder, number) for number in sorted(map(int, written))])


def _start_surely(
    spark: SparkSession, folder: Path, options: dict[str, str], trigger: dict[str, Any]
) -> Any:
    """Start a query, again if its process did not come up within the 10 s that Spark gives it.

    On a busy machine that happens, and more often when several start at once.
    """
    while True:
        query = start_query(spark, folder, options, trigger)
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
                trigger = {"processingTime": command["trigger"]}
                queries[folder] = _start_surely(spark, Path(folder), command["options"], trigger)
            if command["do"] == "stop":
                queries[folder].stop()
            error = queries[folder].exception()
            progress = queries[folder].lastProgress
            answer = {
                "error": None if error is None else str(error),
                "progress": progress and dict(progress["sources"][0]),
            }
            print(json.dumps(answer, default=str), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
