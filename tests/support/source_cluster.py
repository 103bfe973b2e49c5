"""A driver in a process of its own, on a cluster of executor processes; told what to do by lines.

Run as a program it is the driver: it reads commands as JSON lines from standard input and answers
each with one. Imported, it gives `Driver`, which starts that program and may kill it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.support.spark import spark_session

# Unless `spark.master` is among the settings.
MASTER = "local-cluster[2,1,1024]"


def _pass_through(folder: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the step between source and sink: it fails, or waits, when a file in `folder` says so.

    `fail`: the first task that has read rows to their end takes the file away, and fails.
    `hold`: tasks that have read rows note their process, and wait until the file is gone.
    `slow`: the first task that has read rows takes the file away, notes itself, and waits until
    `go` is there, or it is killed. Every later attempt of a task notes itself too.
    """

    def note(kind: str, context: TaskContext, read: list[pa.RecordBatch]) -> None:
        about = {
            "batch": int(context.getLocalProperty("streaming.sql.batchId") or -1),
            "index": context.partitionId(),
            "home": os.getppid(),
            "pid": os.getpid(),
            "numbers": [int(value) for batch in read for value in batch.column("data").to_pylist()],
        }
        part = folder / f"{kind}-{context.taskAttemptId()}.part"
        part.write_text(json.dumps(about))
        part.rename(part.with_suffix(".json"))

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = list(batches)
        rows = sum(batch.num_rows for batch in read)
        if rows:
            with contextlib.suppress(FileNotFoundError):
                (folder / "fail").rename(folder / f"failed-{os.getppid()}")
                raise RuntimeError("told to fail")
        if rows and (folder / "hold").exists():
            (folder / f"held-{os.getpid()}").touch()
            while (folder / "hold").exists():
                time.sleep(0.02)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber():
            note("again", context, read)
        if rows:
            with contextlib.suppress(FileNotFoundError):
                (folder / "slow").unlink()
                note("slowed", context, read)
                while not (folder / "go").exists():
                    time.sleep(0.02)
        for batch in read:
            home = pa.array([os.getppid()] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column("data"), home], ["data", "home"])

    return step


def _start(spark: SparkSession, folder: Path, options: dict[str, str], trigger: str) -> Any:
    (folder / "out").mkdir(exist_ok=True)

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.toArrow()
        if not rows.num_rows:
            return
        # All tasks have ended, and Spark has not committed the batch.
        if (folder / "pause").exists():
            (folder / "paused").touch()
        while (folder / "pause").exists():
            time.sleep(0.02)
        found = [(int(row["data"]), row["home"]) for row in rows.to_pylist()]
        # Like a sink that knows batches: a batch that is run again takes the place of the first.
        part = folder / "out" / f"{number}.part"
        part.write_text(json.dumps(found))
        part.rename(folder / "out" / f"{number}.json")

    frame = spark.readStream.format("pubsub").options(**options).load().select("data")
    frame = frame.mapInArrow(_pass_through(folder), "data binary, home bigint")
    writer = frame.writeStream.foreachBatch(write).trigger(processingTime=trigger)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def main() -> None:
    """Be the driver until standard input ends."""
    settings = json.loads(sys.argv[1])
    queries: dict[str, Any] = {}
    with spark_session(settings.pop("spark.master", MASTER), **settings) as spark:
        print(json.dumps({"pid": os.getpid()}), flush=True)  # noqa: T201 - the answer
        for line in sys.stdin:
            command = json.loads(line)
            answer: dict[str, Any] = {}
            folder = Path(command["folder"])
            if command["do"] == "start":
                queries[str(folder)] = _start(spark, folder, command["options"], command["trigger"])
            query = queries[str(folder)]
            if command["do"] == "stop":
                query.stop()
            error = query.exception()
            answer["error"] = None if error is None else str(error)
            answer["progress"] = query.lastProgress and dict(query.lastProgress["sources"][0])
            print(json.dumps(answer, default=str), flush=True)  # noqa: T201 - the answer


class Driver:
    """The program above, running."""

    def __init__(self, child: subprocess.Popen[str], log: IO[bytes]) -> None:
        self._child = child
        self._log = log
        self.process = psutil.Process(child.pid)

    def ask(self, do: str, folder: Path, **more: Any) -> dict[str, Any]:
        """Give a command, and get its answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": do, "folder": str(folder), **more}) + "\n")
        self._child.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Read one answer."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the driver is gone; its log: {self.log_tail()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log_tail(self) -> str:
        """Give the end of what the driver has written to standard error."""
        self._log.seek(0)
        return self._log.read()[-3000:].decode(errors="replace")

    def descendants(self, word: str) -> list[psutil.Process]:
        """Find processes below the driver by a word of their command line."""
        found = []
        for process in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(word in part for part in process.cmdline()):
                    found.append(process)
        return found


@contextmanager
def driver(program: str = "tests.support.source_cluster", **settings: str) -> Iterator[Driver]:
    """Run a driver; whatever happens, nothing of it stays."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-m", program, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Executors run elsewhere in the tree of files, and have to find what the test finds.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
        running = Driver(child, log)
        try:
            running.answer()
            yield running
        finally:
            below = running.process.children(recursive=True) if child.poll() is None else []
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(OSError):
                child.stdin.close()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()
            for process in psutil.wait_procs(below, timeout=10)[1]:
                with contextlib.suppress(psutil.Error):
                    process.kill()


if __name__ == "__main__":
    main()
