"""The streaming source's latency at a steady rate: from publish to `foreachBatch`.

A process of its own publishes at an even pace; the query has the default trigger. A message's time
is its publish_time, of the emulator's clock on this machine. Tasks fetch when `foreachBatch` reads
its frame, so a batch also has messages that were published after the call: they count as 0 there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.pubsub_v1.types import pubsub as api
from pyspark.sql import DataFrame, SparkSession

from benchmarks.emulator import PAYLOAD_BYTES, SUBSCRIPTION, TOPIC, create_resources
from benchmarks.spark import session
from penstock.testing import PubSubEmulator, pubsub_emulator

_REQUEST_SECONDS = 0.01
_START_SECONDS = 120.0
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
# Spark's names for the parts of a batch's duration that matter here.
_PARTS = {
    "triggerExecution": "mean duration of a batch",
    "latestOffset": "    asking the source for work",
    "walCommit": "    writing the offset log",
    "queryPlanning": "    planning the query",
    "addBatch": "    foreachBatch",
    "commitOffsets": "    writing the commit log",
}

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Published:
    """What the publisher has done."""

    messages: int
    # How far it was behind its schedule at worst.
    late_seconds: float


@dataclass(frozen=True)
class Batch:
    """One micro-batch as `foreachBatch` saw it; all times in seconds of the wall clock."""

    number: int
    called_at: float
    collected_at: float
    published_at: Times


@dataclass
class Collector:
    """The query's `foreachBatch`."""

    batches: list[Batch] = field(default_factory=list)
    rows: int = 0

    def take(self, frame: DataFrame, number: int) -> None:
        """Collect a batch, and note when."""
        called_at = time.time()
        table = frame.toArrow()
        collected_at = time.time()
        micros = table["publish_time"].cast(pa.int64()).to_numpy()
        self.batches.append(Batch(number, called_at, collected_at, micros / 1e6))
        self.rows += len(micros)


@dataclass(frozen=True)
class Latency:
    """Seconds from publish to two moments, one value for each message; and the batches."""

    called: Times
    collected: Times
    # Of each batch, what Spark has measured: triggerExecution is the whole, the rest its parts.
    durations_ms: list[dict[str, int]]


def publish_evenly(address: str, rate: int, seconds: float, done: Connection) -> None:
    """Publish small requests at an even pace; runs in a process of its own."""
    count = max(1, round(rate * _REQUEST_SECONDS))
    message = api.PubsubMessage(
        data=os.urandom(PAYLOAD_BYTES), attributes={"origin": "bench", "kind": "order"}
    )
    request = api.PublishRequest(topic=TOPIC, messages=[message] * count)
    payload = bytes(api.PublishRequest.serialize(request))
    requests = round(rate * seconds / count)
    late_seconds = 0.0
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(30)
        call = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        flying: deque[Any] = deque()
        began = time.monotonic()
        for number in range(requests):
            # Against the clock, so that what a request costs does not add up.
            early = began + number * count / rate - time.monotonic()
            if early > 0:
                time.sleep(early)
            late_seconds = max(late_seconds, -early)
            flying.append(call.future(payload, timeout=60))
            while flying and flying[0].done():
                flying.popleft().result()
        for future in flying:
            future.result()
    done.send(Published(requests * count, late_seconds))


def measure(
    spark: SparkSession, emulator: PubSubEmulator, rate: int, warm_seconds: float, seconds: float
) -> tuple[Latency, Published]:
    """Run a query and the publisher; what was published in the warm-up is not in the figures."""
    create_resources(emulator.address)
    # All batches shall be in the progress, not only the newest hundred.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    collector = Collector()
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.readStream.format("pubsub").option("subscriptionId", SUBSCRIPTION).load()
        writer = frame.writeStream.foreachBatch(collector.take)
        query = writer.option("checkpointLocation", f"{folder}/ck").start()
        try:
            _wait_for_stream(emulator, query)
            published = _publish(emulator.address, rate, warm_seconds + seconds, query)
            while collector.rows < published.messages:
                _check(query)
                time.sleep(0.05)
            progress = {p["batchId"]: p["durationMs"] for p in query.recentProgress}
        finally:
            query.stop()
    return _evaluate(collector.batches, warm_seconds, progress), published


def _wait_for_stream(emulator: PubSubEmulator, query: Any) -> None:
    end = time.monotonic() + _START_SECONDS
    while not emulator.counters(SUBSCRIPTION).streams:
        _check(query)
        if time.monotonic() > end:
            raise TimeoutError(f"no stream was opened within {_START_SECONDS:g}s")
        time.sleep(0.05)


def _publish(address: str, rate: int, seconds: float, query: Any) -> Published:
    # Not a fork: this process has threads, and gRPC in use.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=publish_evenly, args=(address, rate, seconds, sender))
    child.start()
    sender.close()
    try:
        while not receiver.poll(0.2):
            _check(query)
        # Raises EOFError if the publisher has failed.
        published: Published = receiver.recv()
    finally:
        child.join(timeout=10)
        if child.is_alive():
            child.kill()
            child.join()
    return published


def _check(query: Any) -> None:
    """Raise the error of a query that has failed."""
    if not query.isActive:
        query.awaitTermination()
        raise RuntimeError("the query has ended")


def _evaluate(
    batches: list[Batch], warm_seconds: float, progress: dict[int, dict[str, int]]
) -> Latency:
    first = min(batch.published_at.min() for batch in batches if len(batch.published_at))
    called, collected, durations_ms = [], [], []
    for batch in batches:
        counted = batch.published_at[batch.published_at >= first + warm_seconds]
        if not len(counted):
            continue
        called.append(np.maximum(0.0, batch.called_at - counted))
        collected.append(batch.collected_at - counted)
        # The last one may not be reported yet.
        if batch.number in progress:
            durations_ms.append(progress[batch.number])
    return Latency(np.concatenate(called), np.concatenate(collected), durations_ms)


def main() -> None:
    """Print the quantiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="messages per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with pubsub_emulator() as emulator, session() as spark:
        latency, published = measure(
            spark, emulator, arguments.rate, arguments.warm_seconds, arguments.seconds
        )
    print(f"{'from publish to':32}" + "".join(f"{name:>11}" for name in _QUANTILES))
    for name, times in (
        ("the call of foreachBatch", latency.called),
        ("its rows in the driver", latency.collected),
    ):
        cells = [f"{np.quantile(times, part) * 1000:8,.0f} ms" for part in _QUANTILES.values()]
        print(f"{name:32}" + "".join(cells))
    print(f"{'messages':32} {len(latency.called):10,} at {arguments.rate:,}/s")
    print(f"{'published after the call':32} {(latency.called == 0).mean():10.0%}")
    print(f"{'batches':32} {len(latency.durations_ms):10,}")
    means = {part: np.mean([d.get(part, 0) for d in latency.durations_ms]) for part in _PARTS}
    for part, meaning in _PARTS.items():
        print(f"{meaning:32} {means[part]:7,.0f} ms")
    print(f"{'publisher at most behind by':32} {published.late_seconds * 1000:7,.0f} ms")


if __name__ == "__main__":
    main()
