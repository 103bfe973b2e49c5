"""The streaming source against a straightforward one on Google's client, in one run.

The peer is what a good engineer would write in an afternoon on the same Data Source API: `read()`
opens the official subscriber with large flow-control limits, collects for a while, acknowledges and
yields Arrow, with the same columns. Both drain the same kind of backlog from the emulator into
Spark's noop sink.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.cloud import pubsub_v1
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from benchmarks.emulator import (
    MESSAGES_PER_REQUEST,
    PAYLOAD_BYTES,
    canned_response,
    create_resources,
    publish_rate,
)
from benchmarks.processes import CpuTimes, cpu_times, used_between
from benchmarks.spark import session
from penstock.pubsub.encoding import ROW_SCHEMA, SPARK_DDL, decode_streaming_pull
from penstock.testing import PubSubEmulator, pubsub_emulator

_PEER_SECONDS = 5.0
_CANNED_BATCHES = 100
# The JVM compiles for more than half a minute: so many runs of about ten seconds do not count.
_WARM_UPS = 5
_NUMBERS = itertools.count()


class PeerReader(DataSourceStreamReader):
    """Acknowledges when a message is received; two partitions, five seconds each."""

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See PySpark."""
        return {"tick": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """See PySpark."""
        del limit
        return {"tick": start["tick"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See PySpark."""
        del start, end
        return [InputPartition(index) for index in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See PySpark."""
        del partition
        received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        subscriber = pubsub_v1.SubscriberClient()

        def take(message: Any) -> None:
            received.put(
                (
                    message.message_id,
                    message.publish_time,
                    message.data,
                    list(message.attributes.items()),
                    message.ordering_key or None,
                    message.delivery_attempt,
                )
            )
            message.ack()

        flow = pubsub_v1.types.FlowControl(max_messages=50_000, max_bytes=200_000_000)
        future = subscriber.subscribe(self._subscription, take, flow_control=flow)
        end = time.monotonic() + _PEER_SECONDS
        rows: list[Any] = []
        while (left := end - time.monotonic()) > 0:
            try:
                rows.append(received.get(timeout=left))
            except queue.Empty:
                break
            if len(rows) == 8192:
                yield _batch(rows)
                rows = []
        future.cancel()
        future.result()
        subscriber.close()
        while not received.empty():
            rows.append(received.get())
        if rows:
            yield _batch(rows)


def _batch(rows: list[Any]) -> pa.RecordBatch:
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), ROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


class PeerSource(DataSource):
    """The peer as a format."""

    @classmethod
    def name(cls) -> str:
        """See PySpark."""
        return "pubsub_peer"

    def schema(self) -> str:
        """See PySpark."""
        return SPARK_DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """See PySpark."""
        del schema
        return PeerReader(self.options["subscriptionId"])


class CannedReader(DataSourceReader):
    """Yields the same ready batch again and again: what Spark itself takes, and nothing else."""

    def partitions(self) -> Sequence[InputPartition]:
        """See PySpark."""
        return [InputPartition(index) for index in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See PySpark."""
        del partition
        rows = decode_streaming_pull(canned_response()).rows
        batch = pa.concat_batches([rows] * 8)
        for _ in range(_CANNED_BATCHES):
            yield batch


class CannedSource(DataSource):
    """The ceiling as a format."""

    @classmethod
    def name(cls) -> str:
        """See PySpark."""
        return "canned"

    def schema(self) -> str:
        """See PySpark."""
        return SPARK_DDL

    def reader(self, schema: Any) -> DataSourceReader:
        """See PySpark."""
        del schema
        return CannedReader()


def ceiling_rate(spark: SparkSession) -> float:
    """Rows per second of ready batches into the noop sink, the better of two runs."""
    rates = []
    for _ in range(2):
        began = time.perf_counter()
        spark.read.format("canned").load().write.format("noop").mode("append").save()
        rates.append(2 * _CANNED_BATCHES * 8000 / (time.perf_counter() - began))
    return max(rates)


@dataclass(frozen=True)
class Drained:
    """How fast a backlog was drained, and what it cost."""

    # Messages per second, until seven tenths, and until all but a twentieth are acknowledged.
    early_rate: float
    rate: float
    # Microseconds of CPU for each message, by the part that a process plays.
    cpu_us: dict[str, float]


def drain(
    spark: SparkSession,
    emulator: PubSubEmulator,
    source: str,
    messages: int,
    warm: int,
    *,
    is_spooled: bool = False,
    is_whole: bool = True,
) -> Drained:
    """Drain a backlog; messages acknowledged per second, once `warm` of them are.

    Two rates, because they tell two things of the peer: what its cancelled streams had under lease
    comes again after a minute only.
    """
    # Of its own: what an earlier run has left under lease is not this one's business.
    name = f"{source}-{next(_NUMBERS)}"
    topic, subscription = f"projects/bench/topics/{name}", f"projects/bench/subscriptions/{name}"
    create_resources(emulator.address, topic, subscription)
    publish_rate(emulator.address, messages // MESSAGES_PER_REQUEST, topic)
    published = emulator.counters(subscription).published
    early, total = published * 7 // 10, published * 19 // 20
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        reader = spark.readStream.format(source).option("subscriptionId", subscription)
        if is_spooled:
            reader = reader.option("spoolLocation", f"{folder}/spool")
        frame = reader.load()
        query = (
            frame.writeStream.format("noop").option("checkpointLocation", f"{folder}/ck").start()
        )
        began, counted, early_rate = 0.0, 0, 0.0
        cpu: CpuTimes = {}
        cpu_us: dict[str, float] = {}
        try:
            while (acked := emulator.counters(subscription).acked) < total:
                if not began and acked >= warm:
                    cpu = cpu_times(emulator.pid())
                    began, counted = time.perf_counter(), acked
                if not early_rate and acked >= early:
                    early_rate = (acked - counted) / (time.perf_counter() - began)
                    used = used_between(cpu, cpu_times(emulator.pid()))
                    cpu_us = {r: s * 1e6 / (acked - counted) for r, s in used.items()}
                    if not is_whole:
                        break
                if not query.isActive:
                    query.awaitTermination()
                time.sleep(0.02)
            rate = (acked - counted) / (time.perf_counter() - began)
            return Drained(early_rate or rate, rate, cpu_us)
        finally:
            query.stop()


def main() -> None:
    """Print the rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--peer-messages", type=int, default=200_000)
    arguments = parser.parse_args()
    with pubsub_emulator() as emulator, session() as spark:
        spark.dataSource.register(PeerSource)
        spark.dataSource.register(CannedSource)
        ceiling = ceiling_rate(spark)
        for _ in range(_WARM_UPS):
            drain(
                spark, emulator, "pubsub_peer", arguments.peer_messages // 2, 2_000, is_whole=False
            )
        peer = drain(spark, emulator, "pubsub_peer", arguments.peer_messages, 2_000)
        for _ in range(_WARM_UPS):
            drain(spark, emulator, "pubsub", arguments.messages // 2, 200_000, is_whole=False)
        ours = drain(spark, emulator, "pubsub", arguments.messages, 200_000)
        count = arguments.messages
        spooled = drain(spark, emulator, "pubsub", count, 200_000, is_spooled=True)
    for name, drained in (
        ("peer: Google's client in read()", peer),
        ("pubsub", ours),
        ("pubsub with a spool on this disk", spooled),
    ):
        rate = drained.early_rate
        print(f"{name:32} {rate:12,.0f} messages/s {rate * PAYLOAD_BYTES / 1e6:8,.1f} MB/s")
        print(f"{'    all but a twentieth':32} {drained.rate:12,.0f} messages/s")
        for role, cost in drained.cpu_us.items():
            print(f"    CPU of {role:21} {cost:12.2f} us/message")
    print(f"{'ceiling: ready batches in Spark':32} {ceiling:12,.0f} messages/s")
    print(f"{'pubsub / peer':32} {ours.early_rate / peer.early_rate:12.1f} x")
    print(f"{'    all but a twentieth':32} {ours.rate / peer.rate:12.1f} x")
    print(f"{'with a spool / without':32} {spooled.early_rate / ours.early_rate:12.0%}")


if __name__ == "__main__":
    main()
