"""The streaming source against a straightforward one on Google's client, in one run.

The peer is what a good engineer would write in an afternoon on the same Data Source API: `read()`
opens the official subscriber with large flow-control limits, collects for a while, acknowledges and
yields Arrow. Both drain the same kind of backlog from the emulator into Spark's noop sink.
"""

from __future__ import annotations

import argparse
import queue
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from google.cloud import pubsub_v1
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from benchmarks.emulator import (
    MESSAGES_PER_REQUEST,
    PAYLOAD_BYTES,
    SUBSCRIPTION,
    create_resources,
    publish_rate,
)
from benchmarks.spark import session
from penstock.testing import PubSubEmulator, pubsub_emulator

_PEER_SECONDS = 5.0
_PEER_SCHEMA = pa.schema([("message_id", pa.string()), ("data", pa.binary())])


class PeerReader(DataSourceStreamReader):
    """Acknowledges when a message is received; two partitions, five seconds each."""

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
            received.put((message.message_id, message.data))
            message.ack()

        flow = pubsub_v1.types.FlowControl(max_messages=50_000, max_bytes=200_000_000)
        future = subscriber.subscribe(SUBSCRIPTION, take, flow_control=flow)
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
    ids, data = zip(*rows, strict=True)
    columns = [pa.array(ids, pa.string()), pa.array(data, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_PEER_SCHEMA)


class PeerSource(DataSource):
    """The peer as a format."""

    @classmethod
    def name(cls) -> str:
        """See PySpark."""
        return "pubsub_peer"

    def schema(self) -> str:
        """See PySpark."""
        return "message_id string, data binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """See PySpark."""
        del schema
        return PeerReader()


def drain_rate(
    spark: SparkSession, emulator: PubSubEmulator, source: str, messages: int, warm: int
) -> float:
    """Drain a backlog; messages acknowledged per second, once `warm` of them are."""
    publish_rate(emulator.address, messages // MESSAGES_PER_REQUEST)
    total = emulator.counters(SUBSCRIPTION).published
    first = emulator.counters(SUBSCRIPTION).acked
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.readStream.format(source).option("subscriptionId", SUBSCRIPTION).load()
        query = (
            frame.writeStream.format("noop").option("checkpointLocation", f"{folder}/ck").start()
        )
        began, counted = 0.0, 0
        try:
            while (acked := emulator.counters(SUBSCRIPTION).acked) < total:
                if not began and acked - first >= warm:
                    began, counted = time.perf_counter(), acked
                if not query.isActive:
                    query.awaitTermination()
                time.sleep(0.02)
            return (total - counted) / (time.perf_counter() - began)
        finally:
            query.stop()


def main() -> None:
    """Print the rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_500_000)
    parser.add_argument("--peer-messages", type=int, default=60_000)
    arguments = parser.parse_args()
    with pubsub_emulator() as emulator, session() as spark:
        create_resources(emulator.address)
        spark.dataSource.register(PeerSource)
        peer = drain_rate(spark, emulator, "pubsub_peer", arguments.peer_messages, 2_000)
        ours = drain_rate(spark, emulator, "pubsub", arguments.messages, 200_000)
    for name, rate in (("peer: Google's client in read()", peer), ("pubsub", ours)):
        print(f"{name:32} {rate:12,.0f} messages/s {rate * PAYLOAD_BYTES / 1e6:8,.1f} MB/s")
    print(f"{'pubsub / peer':32} {ours / peer:12.1f} x")


if __name__ == "__main__":
    main()
