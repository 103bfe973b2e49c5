"""The exactly-once mode through Spark, against the emulator: what the sink and the spool hold."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.pubsub import Service
from tests.support.source import Batch, ReadTwice, agents, reader, streaming
from tests.support.spark import wait_until

pytestmark = pytest.mark.spark

COUNT = 5000


def objects(spool: Path) -> list[Path]:
    return sorted(spool.glob("*/*.arrow"))


def spooled(spool: Path | str, subscription: str, **more: str) -> dict[str, Any]:
    return {
        "subscriptionId": subscription,
        "spoolLocation": str(spool),
        "leaseDuration": "10s",
        "maxRowsPerTrigger": "1000",
        **more,
    }


def test_every_message_arrives_once_and_the_spool_is_empty_afterwards(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, COUNT)
    spool = tmp_path / "spool"
    seen: list[int] = []

    def look(batch: Batch) -> None:
        if batch.rows:
            seen.append(len(objects(spool)))

    # Long leases: on a busy machine an agent may stand still for longer than short ones.
    options = spooled(spool, subscription, leaseDuration="60s")
    with streaming(spark, pubsub, tmp_path / "ck", work=look, **options) as run:
        run.wait_rows(COUNT)
        wait_until(lambda: not objects(spool), 20, lambda: (objects(spool), run.state()))
        counters = pubsub.emulator.counters(subscription)
        assert run.metrics["spoolBytes"] > 0 or run.metrics["spoolObjects"] == 0
    assert sorted(run.rows) == list(range(COUNT))
    assert (counters.acked, counters.redelivered, counters.unacked) == (COUNT, 0, 0)
    assert min(seen) > 0


def test_messages_are_acknowledged_before_the_batch_ends(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """However long the sink takes, nothing is left under lease."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 100)

    def work(batch: Batch) -> None:
        if batch.rows:
            wait_until(lambda: pubsub.emulator.counters(subscription).unacked == 0, 10)

    with streaming(
        spark, pubsub, tmp_path / "ck", work=work, **spooled(tmp_path / "spool", subscription)
    ) as run:
        run.wait_rows(100)
        wait_until(lambda: all(batch.is_written for batch in run.batches), 20, run.state)


def test_a_batch_that_is_run_again_has_the_same_rows(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """The sink fails; the query is started again; the batch is the same, row by row."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, COUNT)
    spool = tmp_path / "spool"

    def fail(batch: Batch) -> None:
        if batch.number == 3:
            raise RuntimeError("the sink fails")

    options = spooled(spool, subscription)
    with streaming(spark, pubsub, tmp_path / "ck", work=fail, **options) as first:
        wait_until(lambda: not first.query.isActive, 60, first.state)
    with streaming(spark, pubsub, tmp_path / "ck", **options) as second:
        wait_until(lambda: {*first.rows, *second.rows} == set(range(COUNT)), 60, second.state)
        wait_until(lambda: not second.query.status["isDataAvailable"], 20, second.state)
    failed = next(batch for batch in first.batches if batch.number == 3)
    again = next(batch for batch in second.batches if batch.number == 3)
    assert sorted(failed.rows) == sorted(again.rows) != []
    written = [row for batch in first.batches if batch.number < 3 for row in batch.rows]
    assert sorted([*written, *second.rows]) == list(range(COUNT))
    assert pubsub.emulator.counters(subscription).unacked == 0


def test_a_sink_may_compute_its_batch_twice(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 1000)
    read = ReadTwice()
    with streaming(
        spark,
        pubsub,
        tmp_path / "ck",
        read=read,
        **spooled(tmp_path / "spool", subscription, maxRowsPerTrigger="400"),
    ) as run:
        run.wait_rows(1000)
    assert sorted(run.rows) == list(range(1000))
    assert read.is_same


def test_a_killed_agent_costs_no_duplicate(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Its last objects are replayed; their messages are dropped when they come again."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, COUNT)
    killed = threading.Event()

    def kill(batch: Batch) -> None:
        if batch.rows and batch.number >= 2 and not killed.is_set():
            killed.set()
            for agent in agents(pubsub):
                agent.kill()

    with streaming(
        spark,
        pubsub,
        tmp_path / "ck",
        work=kill,
        **spooled(tmp_path / "spool", subscription),
    ) as run:
        wait_until(lambda: set(run.rows) == set(range(COUNT)), 90, run.state)
        wait_until(lambda: pubsub.emulator.counters(subscription).unacked == 0, 30, run.state)
    assert killed.is_set()
    assert sorted(run.rows) == list(range(COUNT))


def test_available_now_leaves_an_empty_spool(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 2500)
    options = spooled(tmp_path / "spool", subscription)
    with streaming(
        spark, pubsub, tmp_path / "ck", trigger={"availableNow": True}, **options
    ) as run:
        assert run.query.awaitTermination(60), run.state()
    assert sorted(run.rows) == list(range(2500))
    assert pubsub.emulator.counters(subscription).unacked == 0
    wait_until(lambda: not objects(tmp_path / "spool"), 5, lambda: objects(tmp_path / "spool"))


def failure(spark: SparkSession, pubsub: Service, checkpoint: Path, **options: Any) -> str:
    """Start a query that must fail before its first batch; gives its error's text."""
    frame = reader(spark, pubsub, **options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.start()
    with pytest.raises(Exception, match="PENSTOCK_") as caught:
        query.awaitTermination(30)
    return str(caught.value)


def test_a_spool_is_for_one_query_and_one_subscription(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Another query, another subscription, or the same query without it: each is told why."""
    topic, subscription = pubsub.pair()
    other = pubsub.subscription(topic)
    pubsub.publish(topic, 100)
    spool, checkpoint = tmp_path / "spool", tmp_path / "ck"
    never = threading.Event()

    def stick(batch: Batch) -> None:
        if batch.rows:
            never.wait(30)
            raise RuntimeError("ended in mid-batch")

    with streaming(spark, pubsub, checkpoint, work=stick, **spooled(spool, subscription)) as run:
        wait_until(lambda: run.rows, 60, run.state)
        stopping = threading.Thread(target=run.query.stop)
        stopping.start()
        wait_until(lambda: not run.query.isActive, 20, run.state)
        never.set()
        stopping.join(30)
    assert objects(spool)
    options = spooled(spool, subscription)
    text = failure(spark, pubsub, tmp_path / "another", **options)
    assert "SPOOL_IN_USE" in text
    text = failure(spark, pubsub, checkpoint, **spooled(tmp_path / "elsewhere", subscription))
    assert "SPOOL_OTHER" in text
    text = failure(spark, pubsub, tmp_path / "third", **spooled(spool, other))
    assert "SPOOL_SUBSCRIPTION" in text
    text = failure(spark, pubsub, checkpoint, subscriptionId=subscription)
    assert "SPOOL_ABSENT" in text
    text = failure(spark, pubsub, tmp_path / "4", **spooled("ftp://x", subscription))
    assert "spoolLocation" in text
    assert not agents(pubsub)
    with streaming(spark, pubsub, checkpoint, **options) as again:
        wait_until(lambda: sorted(again.rows) == list(range(100)), 60, again.state)
