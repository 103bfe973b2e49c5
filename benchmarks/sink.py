"""The sink from Spark against Google's own client, publishing the same messages, in one run.

Three ways to the same emulator, which runs in a process of its own:
- `client`: one process, pubsub_v1.PublisherClient, its batches set to the service's limits;
- `client in Spark`: the same client in every partition of a Spark job, as one would write it;
- `sink`: df.write.format("pubsub").
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from google.cloud import pubsub_v1
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from benchmarks.spark import session
from penstock.testing import pubsub_emulator

PROJECT, TOPIC = "bench", "sink"
PAYLOAD_BYTES = 1024
PARTITIONS = 2
_FULL_TOPIC = f"projects/{PROJECT}/topics/{TOPIC}"


def messages(spark: SparkSession, count: int) -> DataFrame:
    """Make messages of 1 KB with two attributes, held in memory so that making them is free."""
    frame = spark.range(0, count, 1, PARTITIONS).select(
        f.rpad(f.col("id").cast("string"), PAYLOAD_BYTES, "x").cast("binary").alias("data"),
        f.create_map(
            f.lit("origin"), f.lit("bench"), f.lit("kind"), (f.col("id") % 7).cast("string")
        ).alias("attributes"),
    )
    frame = frame.cache()
    frame.count()
    return frame


def publish_rows(rows: Iterator[Row]) -> None:
    """Publish with Google's client, tuned: largest batches, results awaited at the end."""
    publisher = pubsub_v1.PublisherClient(
        batch_settings=pubsub_v1.types.BatchSettings(
            max_messages=1000, max_bytes=9_000_000, max_latency=0.01
        )
    )
    futures = [publisher.publish(_FULL_TOPIC, bytes(r.data), **r.attributes) for r in rows]
    for future in futures:
        future.result()
    publisher.stop()


def client_rate(frame: DataFrame, count: int) -> float:
    """Publish from this process; messages per second."""
    rows = frame.limit(count).collect()
    began = time.perf_counter()
    publish_rows(iter(rows))
    return count / (time.perf_counter() - began)


def client_in_spark_rate(frame: DataFrame, count: int) -> float:
    """Publish with the same client from every partition; messages per second."""
    part = frame.limit(count).repartition(PARTITIONS).cache()
    part.count()
    began = time.perf_counter()
    part.foreachPartition(publish_rows)
    rate = count / (time.perf_counter() - began)
    part.unpersist()
    return rate


def sink_rate(frame: DataFrame, count: int) -> float:
    """Publish with the sink; messages per second, from the call to its return."""
    began = time.perf_counter()
    writer = frame.write.format("pubsub").mode("append")
    writer.option("projectId", PROJECT).option("topicId", TOPIC).save()
    return count / (time.perf_counter() - began)


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--client-messages", type=int, default=40_000)
    arguments = parser.parse_args()
    # The emulator first: Spark's workers get its address from the environment.
    with pubsub_emulator() as emulator, session() as spark:
        publisher = pubsub_v1.PublisherClient()
        publisher.create_topic(name=_FULL_TOPIC)
        frame = messages(spark, arguments.messages)
        # Once for all: JIT, workers and imports are warm on both sides.
        sink_rate(frame, arguments.messages)
        client = client_rate(frame, arguments.client_messages)
        client_in_spark = client_in_spark_rate(frame, arguments.client_messages)
        before = emulator.topic_counters(_FULL_TOPIC).published
        sink = sink_rate(frame, arguments.messages)
        stored = emulator.topic_counters(_FULL_TOPIC).published - before
        assert stored == arguments.messages, (stored, arguments.messages)
    for name, rate in (
        ("client", client),
        ("client in Spark, 2 partitions", client_in_spark),
        ("sink", sink),
    ):
        print(f"{name:32} {rate:12,.0f} messages/s {rate * PAYLOAD_BYTES / 1e6:8,.1f} MB/s")
    print(f"{'sink / client':32} {sink / client:12.1f} x")
    print(f"{'sink / client in Spark':32} {sink / client_in_spark:12.1f} x")


if __name__ == "__main__":
    main()
