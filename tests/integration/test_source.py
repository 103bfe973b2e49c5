"""The Pub/Sub streaming source through Spark, against the emulator: what arrives, and how often."""

from __future__ import annotations

import datetime
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.testing import Fault
from tests.support.pubsub import PROJECT, Service
from tests.support.source import (
    Batch,
    ReadTwice,
    Run,
    agents,
    directory_of,
    is_running,
    reader,
    stays,
    streaming,
)
from tests.support.spark import wait_until

pytestmark = pytest.mark.spark

MANY = 200_000
HELD = 100_000


def wait_acked(pubsub: Service, subscription: str, run: Run, seconds: float = 60.0) -> None:
    """Wait until nothing is left on the subscription."""
    wait_until(
        lambda: run.failed() or pubsub.emulator.counters(subscription).unacked == 0,
        seconds,
        lambda: (pubsub.emulator.counters(subscription), run.state()),
    )


def test_every_message_arrives_once_and_is_acknowledged(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Many messages come once each, the last are acked without new data, and no process stays."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, MANY // 2)
    with streaming(spark, pubsub, tmp_path, subscriptionId=subscription) as run:
        pubsub.publish(topic, MANY // 2, MANY // 2)
        run.wait_rows(MANY)
        wait_acked(pubsub, subscription, run)
        counters = pubsub.emulator.counters(subscription)
        wait_until(lambda: not run.query.status["isTriggerActive"] or run.batches)
        quiet = len(run.batches)
        running = agents(pubsub)
        directories = [directory_of(agent) for agent in running]
        assert all(path.stat().st_mode & 0o077 == 0 for path in directories)
        stays(lambda: len(run.batches) <= quiet + 1, 2.0, run.state)
    assert sorted(run.rows) == list(range(MANY))
    assert (counters.delivered, counters.redelivered) == (MANY, 0)
    assert (counters.nacked, counters.expired) == (0, 0)
    assert len(running) == 1
    wait_until(lambda: not any(map(is_running, running)), 5)
    assert not any(directory.exists() for directory in directories)


def test_an_idle_stream_runs_no_job(spark: SparkSession, pubsub: Service, tmp_path: Path) -> None:
    """After the last batch is acknowledged no further batch comes."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 10)
    with streaming(spark, pubsub, tmp_path, subscriptionId=subscription) as run:
        run.wait_rows(10)
        wait_acked(pubsub, subscription, run)
        last = run.batches[-1].number
        stays(lambda: run.batches[-1].number <= last + 1, 2.0, run.state)
        settled = run.batches[-1].number
        stays(lambda: run.batches[-1].number == settled, 2.0, run.state)
        pubsub.publish(topic, 10, 10)
        run.wait_rows(20)
        wait_acked(pubsub, subscription, run)
    assert sorted(run.rows) == list(range(20))


def failure_of(query_of: Any, seconds: float = 30.0) -> str:
    """Start a query that must fail soon; gives its error's text."""
    began = time.monotonic()
    with pytest.raises(Exception, match="PENSTOCK_") as caught:
        query_of().awaitTermination(seconds)
    assert time.monotonic() - began < seconds
    return str(caught.value)


def start(spark: SparkSession, pubsub: Service, path: Path, **options: str) -> Any:
    frame = reader(spark, pubsub, **options).load()
    return frame.writeStream.format("noop").option("checkpointLocation", str(path)).start()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscriptionId": f"projects/{PROJECT}/subscriptions/absent"}, ["NOT_FOUND", "create"]),
        ({"subscriptionId": "short"}, ["PENSTOCK_", "projectId"]),
        ({"subscriptionId": "s", "projectId": "p", "maxRowsPerTriger": "1"}, ["maxRowsPerTrigger"]),
        ({"subscriptionId": "s", "projectId": "p", "leaseDuration": "1s"}, ["leaseDuration"]),
        ({"subscriptionId": "orders", "projectId": "another"}, ["NOT_FOUND", "another"]),
        (
            {
                "subscriptionId": f"projects/{PROJECT}/subscriptions/orders",
                "endpoint": "https://127.0.0.1:1",
                "credentialsFile": "absent.json",
            },
            ["PENSTOCK_CREDENTIALS", "absent.json", "every executor"],
        ),
    ],
    ids=[
        "missing subscription",
        "missing project",
        "misspelt option",
        "value out of range",
        "wrong project",
        "wrong credentials",
    ],
)
def test_wrong_options_end_the_query_at_once(
    spark: SparkSession,
    pubsub: Service,
    tmp_path: Path,
    options: dict[str, str],
    words: list[str],
) -> None:
    """The error says what is wrong and how to mend it, and no process is left."""
    text = failure_of(lambda: start(spark, pubsub, tmp_path, **options))
    for word in words:
        assert word in text
    assert not agents(pubsub)


def test_subscriptions_that_cannot_be_pulled_are_refused(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Push, detached and forbidden subscriptions each end the query with their own reason."""
    topic = pubsub.topic()
    push = pubsub.subscription(topic, push_config={"push_endpoint": "https://example.com"})
    detached = pubsub.subscription(topic)
    pubsub.publisher.detach_subscription(request={"subscription": detached})
    forbidden = pubsub.subscription(topic)
    text = failure_of(lambda: start(spark, pubsub, tmp_path / "1", subscriptionId=push))
    assert "push" in text
    text = failure_of(lambda: start(spark, pubsub, tmp_path / "2", subscriptionId=detached))
    assert "detached" in text
    pubsub.emulator.deny("pubsub.subscriptions.consume")
    try:
        text = failure_of(lambda: start(spark, pubsub, tmp_path / "3", subscriptionId=forbidden))
    finally:
        pubsub.emulator.allow("pubsub.subscriptions.consume")
    assert "pubsub.subscriptions.consume" in text
    assert "roles/pubsub.subscriber" in text
    assert not agents(pubsub)


def test_a_schema_of_the_user_is_refused(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """The columns are fixed, and the error names them."""
    _, subscription = pubsub.pair()

    def begin() -> Any:
        frame = reader(spark, pubsub, subscriptionId=subscription).schema("a int").load()
        return frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()

    text = failure_of(begin)
    assert "SCHEMA_FIXED" in text
    assert "publish_time" in text


def test_a_subscription_deleted_in_mid_run_ends_the_query(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """The user sees the service's reason and the agent's log, and the agent ends."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 10)
    query = start(spark, pubsub, tmp_path, subscriptionId=subscription)
    try:
        wait_until(lambda: pubsub.emulator.counters(subscription).unacked == 0, 30)
        running = agents(pubsub)
        assert running
        pubsub.subscriber.delete_subscription(subscription=subscription)
        text = failure_of(lambda: query)
    finally:
        query.stop()
    assert "NOT_FOUND" in text
    assert "log of the agent" in text
    assert "cannot go on" in text
    wait_until(lambda: not any(map(is_running, running)), 15)


def test_available_now_drains_what_was_there(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """It takes and acks what was there at its start, ends, and leaves later messages for later."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 5000)
    late = threading.Event()

    def publish_more(batch: Batch) -> None:
        if batch.rows and not late.is_set():
            late.set()
            pubsub.publish(topic, 1000, 5000)

    drain: dict[str, Any] = {"trigger": {"availableNow": True}, "subscriptionId": subscription}
    with streaming(
        spark, pubsub, tmp_path, work=publish_more, maxRowsPerTrigger="2000", **drain
    ) as first:
        assert first.query.awaitTermination(60), first.state()
        assert pubsub.emulator.counters(subscription).acked == 5000
    assert sorted(first.rows) == list(range(5000))
    assert max(len(batch.rows) for batch in first.batches) <= 2000
    with streaming(spark, pubsub, tmp_path, **drain) as second:
        assert second.query.awaitTermination(60), second.state()
        assert pubsub.emulator.counters(subscription).unacked == 0
    assert sorted(second.rows) == list(range(5000, 6000))


def test_available_now_ends_on_an_empty_subscription(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """With nothing to drain the query ends by itself."""
    _, subscription = pubsub.pair()
    drain: dict[str, Any] = {"trigger": {"availableNow": True}, "subscriptionId": subscription}
    with streaming(spark, pubsub, tmp_path, **drain) as run:
        assert run.query.awaitTermination(60), run.state()
    assert not run.rows


def test_a_batch_never_exceeds_max_rows_per_trigger(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """However much is waiting, no batch has more rows than allowed, and nothing is left out."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 2000)
    with streaming(
        spark, pubsub, tmp_path, subscriptionId=subscription, maxRowsPerTrigger="333"
    ) as run:
        run.wait_rows(2000)
    assert max(len(batch.rows) for batch in run.batches) == 333
    assert sorted(run.rows) == list(range(2000))


def test_options_of_databricks_connector_are_understood(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Code that moves over keeps its limits: so many tasks, so many records each."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 500)

    def read(frame: DataFrame) -> list[Any]:
        found = frame.select(F.spark_partition_id(), F.col("data").cast("string"))
        return [(part, int(number)) for part, number in found.collect()]

    with streaming(
        spark,
        pubsub,
        tmp_path,
        read=read,
        subscriptionId=subscription,
        numFetchPartitions="2",
        maxRecordsPerFetch="60",
        maxFetchPeriod="10s",
    ) as run:
        run.wait_rows(500)
    tasks = [
        [number for part, number in batch.rows if part == index]
        for batch in run.batches
        for index in range(3)
    ]
    assert max(map(len, tasks)) == 60
    assert {part for part, _ in run.rows} <= {0, 1}
    assert sorted(number for _, number in run.rows) == list(range(500))


def test_max_bytes_per_trigger_bounds_a_batch(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """A batch stays near its bytes even when they came in one response."""
    topic, subscription = pubsub.pair()
    for start_at in range(0, 200, 50):
        messages = [
            {"data": str(number).ljust(10_000).encode()}
            for number in range(start_at, start_at + 50)
        ]
        pubsub.publisher.publish(request={"topic": topic, "messages": messages})
    with streaming(
        spark, pubsub, tmp_path, subscriptionId=subscription, maxBytesPerTrigger="400kB"
    ) as run:
        run.wait_rows(200)
    assert max(len(batch.rows) for batch in run.batches) <= 50
    assert sorted(run.rows) == list(range(200))


def test_min_rows_per_trigger_waits_for_company(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Few messages wait for more; after maxTriggerDelay they go alone."""
    topic, subscription = pubsub.pair()
    with streaming(
        spark,
        pubsub,
        tmp_path,
        subscriptionId=subscription,
        minRowsPerTrigger="100",
        maxTriggerDelay="4s",
    ) as run:
        wait_until(lambda: pubsub.emulator.counters(subscription).streams > 0, state=run.state)
        pubsub.publish(topic, 50)
        stays(lambda: not run.rows, 1.0, run.state)
        pubsub.publish(topic, 50, 50)
        run.wait_rows(100)
        began = time.monotonic()
        pubsub.publish(topic, 10, 100)
        run.wait_rows(110)
        assert time.monotonic() - began > 3.5
    assert {len(batch.rows) for batch in run.batches} <= {0, 100, 10}


def test_a_topic_makes_the_subscription_and_a_stop_deletes_it(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """With topicId a missing subscription is created; on request it ends with the query."""
    topic = pubsub.topic()
    name = f"projects/{PROJECT}/subscriptions/made-by-the-query"
    with streaming(
        spark,
        pubsub,
        tmp_path,
        subscriptionId=name,
        topicId=topic,
        deleteSubscriptionOnStreamStop="true",
    ) as run:
        wait_until(lambda: name in list(pubsub.publisher.list_topic_subscriptions(topic=topic)))
        pubsub.publish(topic, 100)
        run.wait_rows(100)
    wait_until(lambda: not list(pubsub.publisher.list_topic_subscriptions(topic=topic)), 15)
    assert sorted(run.rows) == list(range(100))


@pytest.mark.parametrize("position", ["earliest", "timestamp", "snapshot"])
def test_the_first_start_begins_where_it_is_told(
    spark: SparkSession, pubsub: Service, tmp_path: Path, position: str
) -> None:
    """A seek brings acknowledged messages back on the first start, and not on the second."""
    topic, subscription = pubsub.pair(retain_acked_messages=True)
    snapshot = f"projects/{PROJECT}/snapshots/start-{tmp_path.name.replace('[', '-').strip(']')}"
    pubsub.publish(topic, 10)
    wait_until(lambda: time.time() % 1 < 0.5)
    moment = str(int(time.time() * 1000) + 1)
    if position == "snapshot":
        assert len(pubsub.numbers(subscription)) == 10
        pubsub.subscriber.create_snapshot(request={"name": snapshot, "subscription": subscription})
    wait_until(lambda: time.time() * 1000 > int(moment) + 5)
    pubsub.publish(topic, 10, 10)
    assert len(pubsub.numbers(subscription)) >= 10
    expected = list(range(20)) if position == "earliest" else list(range(10, 20))
    options = {"subscriptionId": subscription, "startingPosition": position}
    if position == "timestamp":
        options["startingTimestamp"] = moment
    if position == "snapshot":
        options["startingSnapshot"] = snapshot
    with streaming(spark, pubsub, tmp_path, **options) as first:
        first.wait_rows(len(expected))
        wait_acked(pubsub, subscription, first)
    pubsub.publish(topic, 5, 20)
    with streaming(spark, pubsub, tmp_path, **options) as second:
        second.wait_rows(5)
        wait_acked(pubsub, subscription, second)
    assert sorted(first.rows) == expected
    assert sorted(second.rows) == list(range(20, 25))


def test_databricks_columns(spark: SparkSession, pubsub: Service, tmp_path: Path) -> None:
    """schemaStyle=databricks gives that connector's names and types."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 3)

    def read(frame: DataFrame) -> list[Any]:
        return [tuple(row) for row in frame.collect()]

    with streaming(
        spark,
        pubsub,
        tmp_path,
        read=read,
        subscriptionId=subscription,
        schemaStyle="databricks",
    ) as run:
        run.wait_rows(3)
    found = sorted((bytes(payload), text) for _, payload, text, _ in run.rows)
    assert found == [(b"0", '{"n":"0"}'), (b"1", '{"n":"1"}'), (b"2", '{"n":"2"}')]
    assert all(abs(millis / 1000 - time.time()) < 300 for *_, millis in run.rows)


def test_event_times_carry_a_watermark(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Windows over the time in an attribute close when the watermark passes them."""
    topic, subscription = pubsub.pair()
    start_at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def publish(*seconds: int) -> None:
        times = [start_at + datetime.timedelta(seconds=second) for second in seconds]
        messages = [{"data": b"1", "attributes": {"at": time.isoformat()}} for time in times]
        pubsub.publisher.publish(request={"topic": topic, "messages": messages})

    def shape(frame: DataFrame) -> DataFrame:
        return (
            frame.withWatermark("event_time", "10 seconds")
            .groupBy(F.window("event_time", "1 minute"))
            .count()
            .select(F.unix_seconds("window.start").alias("start"), "count")
        )

    def read(frame: DataFrame) -> list[Any]:
        return [tuple(row) for row in frame.collect()]

    with streaming(
        spark,
        pubsub,
        tmp_path,
        shape=shape,
        read=read,
        subscriptionId=subscription,
        timestampAttribute="at",
    ) as run:
        publish(1, 2, 3)
        wait_until(lambda: pubsub.emulator.counters(subscription).acked == 3, state=run.state)
        publish(130)
        run.wait_rows(1)
    assert run.rows == [(int(start_at.timestamp()), 3)]


def test_ordering_keys_keep_their_order(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Messages of one key come in order, in one partition of each batch."""
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    for start_at in range(0, 1000, 100):
        messages = [
            {"data": str(number).encode(), "ordering_key": f"key-{number % 7}"}
            for number in range(start_at, start_at + 100)
        ]
        pubsub.publisher.publish(request={"topic": topic, "messages": messages})

    def read(frame: DataFrame) -> list[Any]:
        found = frame.select(F.spark_partition_id(), "ordering_key", F.col("data").cast("string"))
        return [(part, key, int(number)) for part, key, number in found.collect()]

    with streaming(
        spark,
        pubsub,
        tmp_path,
        read=read,
        subscriptionId=subscription,
        maxRowsPerTrigger="300",
        numPartitions="3",
    ) as run:
        run.wait_rows(1000)
    for batch in run.batches:
        homes = {(part, key) for part, key, _ in batch.rows}
        assert len(homes) == len({key for _, key in homes}), homes
    for key in range(7):
        numbers = [number for _, name, number in run.rows if name == f"key-{key}"]
        assert numbers == list(range(key, 1000, 7))


def test_nothing_comes_again_after_a_stop_while_idle(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """A query that is stopped while idle and started again gets only what is new."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 500)
    with streaming(spark, pubsub, tmp_path, subscriptionId=subscription) as first:
        first.wait_rows(500)
        wait_acked(pubsub, subscription, first)
    pubsub.publish(topic, 5, 500)
    with streaming(spark, pubsub, tmp_path, subscriptionId=subscription) as second:
        second.wait_rows(5)
        wait_acked(pubsub, subscription, second)
    assert sorted(second.rows) == list(range(500, 505))


def test_only_the_batch_in_work_comes_again_after_a_stop(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """A query that is stopped in mid-batch gets that batch again, and nothing that was before."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 1000)
    never = threading.Event()

    def stick(batch: Batch) -> None:
        if batch.number == 3:
            never.wait(60)
            raise RuntimeError("stopped in mid-batch")

    options = {"subscriptionId": subscription, "maxRowsPerTrigger": "200"}
    with streaming(spark, pubsub, tmp_path, work=stick, **options) as first:
        wait_until(lambda: any(b.number == 3 for b in first.batches), state=first.state)
        # Stopping waits for the sink, as it does for a write to a database.
        stopping = threading.Thread(target=first.query.stop)
        stopping.start()
        wait_until(lambda: not first.query.isActive, 20, first.state)
        never.set()
        stopping.join(30)
    done = {row for batch in first.batches if batch.number < 3 for row in batch.rows}
    with streaming(spark, pubsub, tmp_path, **options) as second:
        wait_until(lambda: done | set(second.rows) == set(range(1000)), state=second.state)
        wait_acked(pubsub, subscription, second)
    again = done & set(second.rows)
    # Spark commits batch 2 to the source when it plans batch 3, so nothing before is repeated.
    assert not again
    assert len(second.rows) == 1000 - len(done)


def test_a_batch_may_take_three_times_the_lease(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """All leases are extended while a batch runs, however many; nothing is delivered twice."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, HELD)
    slow = threading.Event()
    held: list[int] = []

    def work(batch: Batch) -> None:
        if batch.rows and not slow.is_set():
            slow.set()
            end = time.monotonic() + 31
            wait_until(lambda: time.monotonic() > end)
            held.append(pubsub.emulator.counters(subscription).outstanding)

    with streaming(
        spark, pubsub, tmp_path, work=work, subscriptionId=subscription, leaseDuration="10s"
    ) as run:
        run.wait_rows(HELD)
        wait_acked(pubsub, subscription, run, 60)
        counters = pubsub.emulator.counters(subscription)
    assert sorted(run.rows) == list(range(HELD))
    assert (counters.redelivered, counters.expired) == (0, 0)
    # Many of them were leased all the time.
    assert held
    assert held[0] > HELD * 0.9


def test_streams_that_are_cut_lose_nothing(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Streams that end every 300 ms are opened again, after a wait that the metrics show."""
    topic, subscription = pubsub.pair()
    pubsub.emulator.inject(Fault(kind="cut", method="StreamingPull", seconds=0.3))
    calls = pubsub.emulator.calls().get("StreamingPull", 0)
    began = time.monotonic()
    with streaming(
        spark, pubsub, tmp_path, subscriptionId=subscription, leaseDuration="10s"
    ) as run:
        for part in range(10):
            pubsub.publish(topic, 200, part * 200)
            run.wait_rows(part * 100)
        wait_until(lambda: set(run.rows) == set(range(2000)), state=run.state)
        pubsub.emulator.clear_faults()
        wait_acked(pubsub, subscription, run, 60)
        took = time.monotonic() - began
        opened = pubsub.emulator.calls()["StreamingPull"] - calls
        assert run.metrics["backoffs"] > 0
    # Two streams, each of which lives 0.3 s at least.
    assert opened < 2 + 2 * took / 0.3
    assert len(run.rows) <= 2 * 2000


def test_a_storm_of_resource_exhausted_is_ridden_out(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """While the service refuses streams the query waits longer and longer, then goes on."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 500)
    storm = Fault(kind="error", method="StreamingPull", code="RESOURCE_EXHAUSTED")
    pubsub.emulator.inject(storm)
    before = pubsub.emulator.calls().get("StreamingPull", 0)
    with streaming(spark, pubsub, tmp_path, subscriptionId=subscription) as run:
        wait_until(lambda: agents(pubsub), state=run.state)
        stays(lambda: run.query.isActive, 4.0, run.state)
        tries = pubsub.emulator.calls()["StreamingPull"] - before
        pubsub.emulator.clear_faults()
        run.wait_rows(500)
        wait_acked(pubsub, subscription, run)
        assert run.metrics["backoffs"] >= 2
    assert tries < 50
    assert sorted(run.rows) == list(range(500))


def test_acks_that_fail_or_get_lost_lose_nothing(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """An ack that fails is sent again; one that the service loses brings its message again."""
    topic, subscription = pubsub.pair()
    pubsub.emulator.inject(Fault(kind="error", method="Acknowledge", code="UNAVAILABLE", count=3))
    pubsub.publish(topic, 500)
    with streaming(
        spark, pubsub, tmp_path, subscriptionId=subscription, leaseDuration="10s"
    ) as run:
        run.wait_rows(500)
        wait_acked(pubsub, subscription, run)
        assert sorted(run.rows) == list(range(500))
        pubsub.emulator.inject(Fault(kind="lose_ack", method="Acknowledge", count=1))
        pubsub.publish(topic, 100, 500)
        run.wait_rows(600)
        wait_acked(pubsub, subscription, run, 60)
        assert run.metrics["backoffs"] >= 3
    assert set(run.rows) == set(range(600))
    assert len(run.rows) <= 700


def test_a_service_that_goes_away_for_a_while_is_waited_for(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Streams are opened again, acks sent again; the query goes on, and nothing comes twice."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 5000)
    away = threading.Event()

    def go_away(batch: Batch) -> None:
        if batch.rows and not away.is_set():
            away.set()
            pubsub.emulator.restart(3.0)

    with streaming(
        spark,
        pubsub,
        tmp_path,
        work=go_away,
        subscriptionId=subscription,
        leaseDuration="10s",
        maxRowsPerTrigger="1000",
    ) as run:
        run.wait_rows(5000)
        pubsub.publish(topic, 1000, 5000)
        run.wait_rows(6000)
        wait_acked(pubsub, subscription, run)
        assert run.metrics["backoffs"] > 0
        counters = pubsub.emulator.counters(subscription)
    assert sorted(set(run.rows)) == list(range(6000))
    # Only what was on its way when the connections were cut.
    assert len(run.rows) - 6000 <= counters.redelivered <= 5000


def test_a_sink_may_compute_its_batch_twice(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """A foreachBatch that reads its DataFrame twice sees the same rows, acknowledged once."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 1000)
    read = ReadTwice()
    with streaming(
        spark, pubsub, tmp_path, read=read, subscriptionId=subscription, maxRowsPerTrigger="400"
    ) as run:
        run.wait_rows(1000)
        wait_acked(pubsub, subscription, run)
        counters = pubsub.emulator.counters(subscription)
    assert sorted(run.rows) == list(range(1000))
    assert read.is_same
    assert (counters.redelivered, counters.nacked) == (0, 0)


def test_measurements_for_prometheus(spark: SparkSession, pubsub: Service, tmp_path: Path) -> None:
    """The driver serves them on the port asked for, with what the query has done."""
    topic, subscription = pubsub.pair()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/metrics"

    def metrics() -> dict[str, float]:
        with urllib.request.urlopen(address, timeout=5) as answer:
            text = answer.read().decode()
        samples = [line.split(" ") for line in text.splitlines() if not line.startswith("#")]
        assert all(f'{{subscription="{subscription}"}}' in name for name, _ in samples)
        return {name.split("{")[0]: float(value) for name, value in samples}

    pubsub.publish(topic, 100)
    with streaming(
        spark, pubsub, tmp_path, subscriptionId=subscription, metricsPort=str(port)
    ) as run:
        run.wait_rows(100)
        wait_acked(pubsub, subscription, run)
        wait_until(lambda: metrics()["penstock_pubsub_acked_total"] == 100)
        seen = metrics()
    assert seen["penstock_pubsub_received_total"] == 100
    assert seen["penstock_pubsub_unacked_messages"] == 0
    assert seen["penstock_pubsub_agents"] == 1
    assert seen["penstock_pubsub_streams"] == 2
    assert seen["penstock_pubsub_agent_memory_bytes"] > 1_000_000


def test_more_streams_than_the_quota_end_the_query(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """The error counts them, and says what to change."""
    _, subscription = pubsub.pair()
    text = failure_of(
        lambda: start(
            spark,
            pubsub,
            tmp_path,
            subscriptionId=subscription,
            streamQuota="3",
            streamsPerExecutor="4",
        )
    )
    assert "STREAM_QUOTA" in text
    assert "1 executors open 4 streams" in text
    assert "streamsPerExecutor" in text
    wait_until(lambda: not agents(pubsub), 15)


def test_two_queries_share_a_subscription(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Each message goes to one of them."""
    topic, subscription = pubsub.pair()
    with (
        streaming(spark, pubsub, tmp_path / "1", subscriptionId=subscription) as one,
        streaming(
            spark, pubsub, tmp_path / "2", subscriptionId=subscription, is_alone=False
        ) as two,
    ):
        wait_until(
            lambda: pubsub.emulator.counters(subscription).streams == 4,
            state=lambda: (one.state(), two.state()),
        )
        for part in range(20):
            pubsub.publish(topic, 100, part * 100)
        wait_until(lambda: len(one.rows) + len(two.rows) >= 2000, state=one.state)
        wait_acked(pubsub, subscription, one)
    assert sorted(one.rows + two.rows) == list(range(2000))
    assert one.rows
    assert two.rows


def test_queries_on_different_subscriptions_do_not_meet(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Each gets its own messages, and the end of one does not touch the other."""
    (first, of_first), (second, of_second) = pubsub.pair(), pubsub.pair()
    with streaming(spark, pubsub, tmp_path / "1", subscriptionId=of_first) as one:
        with streaming(
            spark, pubsub, tmp_path / "2", subscriptionId=of_second, is_alone=False
        ) as two:
            pubsub.publish(first, 300)
            pubsub.publish(second, 200, 1000)
            one.wait_rows(300)
            two.wait_rows(200)
        pubsub.publish(first, 100, 300)
        one.wait_rows(400)
        wait_acked(pubsub, of_first, one)
    assert sorted(one.rows) == list(range(400))
    assert sorted(two.rows) == list(range(1000, 1200))


def test_exactly_once_subscriptions_are_acknowledged_id_by_id(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """Acks that fail for a moment are sent again until the service has taken each of them."""
    topic, subscription = pubsub.pair(enable_exactly_once_delivery=True)
    pubsub.emulator.inject(
        Fault(kind="fail_ack_ids", method="Acknowledge", probability=0.5, count=4)
    )
    pubsub.publish(topic, 2000)
    with streaming(
        spark, pubsub, tmp_path, subscriptionId=subscription, maxRowsPerTrigger="500"
    ) as run:
        run.wait_rows(2000)
        wait_acked(pubsub, subscription, run)
        counters = pubsub.emulator.counters(subscription)
    assert sorted(run.rows) == list(range(2000))
    assert (counters.acked, counters.redelivered) == (2000, 0)
