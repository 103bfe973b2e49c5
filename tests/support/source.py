"""Streaming queries of the Pub/Sub source for tests, and the agents behind them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from tests.support.pubsub import Service
from tests.support.spark import wait_until

MODULE = "penstock.pubsub.agent"


def numbers_of(frame: DataFrame) -> list[int]:
    """Collect the numbers that `Service.publish` has put into the data."""
    return [int(value) for value in frame.select("data").toArrow()["data"].to_pylist()]


class ReadTwice:
    """Computes each batch twice, as a sink does that counts before it writes."""

    def __init__(self) -> None:
        self._pairs: list[tuple[list[int], list[int]]] = []

    def __call__(self, frame: DataFrame) -> list[int]:
        self._pairs.append((numbers_of(frame), numbers_of(frame)))
        return self._pairs[-1][0]

    @property
    def is_same(self) -> bool:
        """Whether both times gave the same rows, in every batch."""
        return all(sorted(first) == sorted(second) for first, second in self._pairs)


@dataclass
class Batch:
    """One micro-batch as the sink got it."""

    number: int
    rows: list[Any]
    # False while the sink works on it, and for ever if it failed.
    is_written: bool = False


@dataclass
class Run:
    """One run of one query."""

    query: Any
    batches: list[Batch] = field(default_factory=list)

    @property
    def rows(self) -> list[Any]:
        """All rows that the sink got, in their order."""
        return [row for batch in self.batches for row in batch.rows]

    @property
    def metrics(self) -> dict[str, Any]:
        """The source's own measurements; empty before the first report."""
        progress = self.query.lastProgress
        told = progress["sources"][0]["latestOffset"] if progress else None
        return dict(json.loads(told)) if told else {}

    def wait_rows(self, count: int, seconds: float = 120.0) -> None:
        """Wait until the sink has so many rows."""
        wait_until(lambda: self.failed() or len(self.rows) >= count, seconds, self.state)

    def failed(self) -> bool:
        """Raise the error of a query that has failed."""
        error = self.query.exception()
        if error is not None:
            raise error
        return False

    def state(self) -> Any:
        """What a test shows when it waits in vain."""
        batches = [(batch.number, len(batch.rows)) for batch in self.batches if batch.rows]
        return {"batches": batches, "metrics": self.metrics, "status": self.query.status}


def reader(spark: SparkSession, pubsub: Service, **options: str) -> Any:
    """Give a stream reader for this emulator that connects without jitter."""
    chosen = {"endpoint": pubsub.emulator.address, "jitter": "0s", "streamsPerExecutor": "2"}
    return spark.readStream.format("pubsub").options(**{**chosen, **options})


@contextmanager
def streaming(
    spark: SparkSession,
    pubsub: Service,
    checkpoint: Path,
    *,
    shape: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    read: Callable[[DataFrame], list[Any]] = numbers_of,
    work: Callable[[Batch], object] = lambda batch: None,
    trigger: dict[str, Any] | None = None,
    mode: str = "append",
    is_alone: bool = True,
    **options: str,
) -> Iterator[Run]:
    """Run a query whose sink is `work`; stops it, and sees to it that all agents end with it."""
    run = Run(None)

    def take(frame: DataFrame, number: int) -> None:
        batch = Batch(number, read(frame))
        run.batches.append(batch)
        work(batch)
        batch.is_written = True

    frame = shape(reader(spark, pubsub, **options).load())
    writer = frame.writeStream.foreachBatch(take).outputMode(mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    run.query = (writer.trigger(**trigger) if trigger else writer).start()
    seen: list[psutil.Process] = []
    try:
        yield run
        seen = agents(pubsub) if is_alone else []
    finally:
        run.query.stop()
        for agent in seen:
            wait_until(lambda agent=agent: not is_running(agent), 15, lambda agent=agent: agent)


def is_running(process: psutil.Process) -> bool:
    """Tell whether a process is there and more than a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def agents(pubsub: Service) -> list[psutil.Process]:
    """Find the agents that are connected to this emulator."""
    port = int(pubsub.emulator.address.rsplit(":", 1)[1])
    found = []
    for process in psutil.process_iter():
        try:
            if MODULE in process.cmdline() and any(
                one.raddr and one.raddr.port == port for one in process.net_connections("tcp")
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def directory_of(agent: psutil.Process) -> Path:
    """Give the directory that an agent was started for."""
    return Path(agent.cmdline()[-1])


def stays(condition: Callable[[], Any], seconds: float, state: Callable[[], Any]) -> None:
    """Check that a condition holds all the time."""
    end = time.monotonic() + seconds
    wait_until(lambda: _still(condition, state) and time.monotonic() > end, seconds + 10)


def _still(condition: Callable[[], Any], state: Callable[[], Any]) -> bool:
    assert condition(), state()
    return True
