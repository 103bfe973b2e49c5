"""The Pub/Sub sink through Spark, against the emulator: what arrives, and what fails how."""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.testing import Fault
from tests.support.pubsub import PROJECT, Service
from tests.support.spark import wait_until

pytestmark = pytest.mark.spark

ROWS = 100_000


def numbered(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as data")


def save(frame: DataFrame, pubsub: Service, topic: str | None, **options: str) -> None:
    writer = frame.write.format("pubsub").mode("append")
    writer = writer.option("endpoint", pubsub.emulator.address).options(**options)
    if topic is not None:
        writer = writer.option("topicId", topic)
    writer.save()


def failure_of(frame: DataFrame, pubsub: Service, topic: str | None, **options: str) -> str:
    with pytest.raises(Exception, match="PENSTOCK_") as caught:
        save(frame, pubsub, topic, **options)
    return str(caught.value)


def stream(spark: SparkSession, source: Path, pubsub: Service, topic: str, **options: str) -> Any:
    frame = spark.readStream.schema("data string").parquet(str(source / "in"))
    return (
        frame.writeStream.format("pubsub")
        .option("endpoint", pubsub.emulator.address)
        .option("topicId", topic)
        .option("checkpointLocation", str(source / "checkpoint"))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )


def test_a_batch_arrives_completely(spark: SparkSession, pubsub: Service) -> None:
    """Every row of a DataFrame is published exactly once when nothing goes wrong."""
    topic, subscription = pubsub.pair()
    save(numbered(spark, ROWS, 4), pubsub, topic)
    assert sorted(pubsub.numbers(subscription)) == list(range(ROWS))


def test_a_stream_arrives_completely(spark: SparkSession, pubsub: Service, tmp_path: Path) -> None:
    """Every row of a stream is published exactly once when nothing goes wrong."""
    topic, subscription = pubsub.pair()
    numbered(spark, ROWS, 4).write.parquet(str(tmp_path / "in"))
    query = stream(spark, tmp_path, pubsub, topic)
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(pubsub.numbers(subscription)) == list(range(ROWS))


def test_string_binary_attributes_and_nulls_arrive_as_they_are(
    spark: SparkSession, pubsub: Service
) -> None:
    """Data of both types, attributes, unicode and null columns arrive unchanged."""
    topic, subscription = pubsub.pair()
    rows = [("gr\u00fcn", {"k": "\u00e9", "empty": ""}), ("x", None), (None, {"only": "this"})]
    frame = spark.createDataFrame(rows, "data string, attributes map<string,string>")
    save(frame, pubsub, topic)
    save(frame.selectExpr("cast(data as binary) as data", "attributes"), pubsub, topic)
    found = sorted((one.data, sorted(one.attributes.items())) for one in pubsub.drain(subscription))
    expected = sorted(((data or "").encode(), sorted((more or {}).items())) for data, more in rows)
    assert found == sorted(expected * 2)


def test_a_short_topic_id_is_completed_with_the_project(
    spark: SparkSession, pubsub: Service
) -> None:
    """topicId and projectId together name the topic."""
    topic, subscription = pubsub.pair()
    save(numbered(spark, 10), pubsub, topic.rsplit("/", 1)[1], projectId=PROJECT)
    assert sorted(pubsub.numbers(subscription)) == list(range(10))


def test_rows_go_to_the_topics_they_name(spark: SparkSession, pubsub: Service) -> None:
    """A topic column routes rows, by short id or full name."""
    (first, of_first), (second, of_second) = pubsub.pair(), pubsub.pair()
    short = first.rsplit("/", 1)[1]
    frame = numbered(spark, 1000).selectExpr(
        "data", f"if(cast(data as int) % 2 = 0, '{short}', '{second}') as topic"
    )
    save(frame, pubsub, None, projectId=PROJECT)
    assert sorted(pubsub.numbers(of_first)) == list(range(0, 1000, 2))
    assert sorted(pubsub.numbers(of_second)) == list(range(1, 1000, 2))


def sink_workers(spark: SparkSession, port: int) -> list[psutil.Process]:
    """Find the Python workers that are connected to the emulator."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    found = []
    for process in jvm.children(recursive=True):
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        if any(one.raddr and one.raddr.port == port for one in connections):
            found.append(process)
    return found


def test_a_killed_worker_loses_nothing(spark: SparkSession, pubsub: Service) -> None:
    """SIGKILL in the middle of a write: Spark runs the task again, and every row is there."""
    topic, subscription = pubsub.pair()
    port = int(pubsub.emulator.address.rsplit(":", 1)[1])
    pubsub.emulator.inject(Fault(kind="latency", method="Publish", seconds=0.1))
    killed: list[int] = []

    def kill() -> None:
        wait_until(
            lambda: pubsub.emulator.topic_counters(topic).published > 1000,
            state=lambda: pubsub.emulator.topic_counters(topic),
        )
        for worker in sink_workers(spark, port):
            os.kill(worker.pid, signal.SIGKILL)
            killed.append(pubsub.emulator.topic_counters(topic).published)
        pubsub.emulator.clear_faults()

    # The write stays in this thread: Spark finds Python formats through the thread's session.
    killing = threading.Thread(target=kill)
    killing.start()
    save(numbered(spark, 20_000), pubsub, topic, batchRows="100", maxInFlightRequests="2")
    killing.join(60)
    assert killed
    assert min(killed) < 20_000
    numbers = pubsub.numbers(subscription)
    assert set(numbers) == set(range(20_000))
    assert len(numbers) > 20_000


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_a_storm_of_passing_failures_is_ridden_out(
    spark: SparkSession, pubsub: Service, code: str
) -> None:
    """Failures that pass cost time and nothing else."""
    topic, subscription = pubsub.pair()
    pubsub.emulator.inject(Fault(kind="error", method="Publish", code=code, count=10))
    pubsub.emulator.inject(Fault(kind="error", method="Publish", code=code, probability=0.3))
    save(numbered(spark, 20_000), pubsub, topic)
    assert sorted(pubsub.numbers(subscription)) == list(range(20_000))
    assert pubsub.emulator.faults_struck()["error"] >= 10


def test_lost_responses_make_duplicates_and_no_loss(spark: SparkSession, pubsub: Service) -> None:
    """What was stored but not confirmed is sent again: at least once."""
    topic, subscription = pubsub.pair()
    pubsub.emulator.inject(Fault(kind="lose_response", method="Publish", count=3))
    save(numbered(spark, 20_000), pubsub, topic)
    numbers = pubsub.numbers(subscription)
    assert set(numbers) == set(range(20_000))
    assert len(numbers) > 20_000


def test_a_missing_topic_fails_with_the_remedy(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """A topic that is not there fails batch and stream, and the text says how to create it."""
    text = failure_of(numbered(spark, 10), pubsub, "missing-topic", projectId=PROJECT)
    assert "[PENSTOCK_NOT_FOUND] Topic 'projects/tests/topics/missing-topic'" in text
    assert "gcloud pubsub topics create missing-topic --project=tests" in text
    numbered(spark, 10).write.parquet(str(tmp_path / "in"))
    query = stream(spark, tmp_path, pubsub, f"projects/{PROJECT}/topics/missing-topic")
    with pytest.raises(Exception, match="PENSTOCK_NOT_FOUND"):
        query.awaitTermination(120)
    assert "gcloud pubsub topics create missing-topic" in str(query.exception())


def test_a_missing_topic_among_those_that_rows_name_fails(
    spark: SparkSession, pubsub: Service
) -> None:
    """The tasks notice what the driver cannot know."""
    frame = numbered(spark, 10).selectExpr("data", "'missing-topic' as topic")
    text = failure_of(frame, pubsub, None, projectId=PROJECT)
    assert "[PENSTOCK_NOT_FOUND] Topic 'projects/tests/topics/missing-topic'" in text


def test_a_missing_permission_fails_with_the_role(spark: SparkSession, pubsub: Service) -> None:
    """The driver asks before the job starts."""
    topic = pubsub.topic()
    pubsub.emulator.deny("pubsub.topics.publish")
    text = failure_of(numbered(spark, 10), pubsub, topic)
    assert "[PENSTOCK_PERMISSION_DENIED]" in text
    assert "roles/pubsub.publisher" in text
    assert pubsub.emulator.topic_counters(topic).published == 0


def test_permission_to_publish_is_enough(spark: SparkSession, pubsub: Service) -> None:
    """Publishing works without permission to look at the topic."""
    topic, subscription = pubsub.pair()
    pubsub.emulator.deny("pubsub.topics.get")
    save(numbered(spark, 10), pubsub, topic)
    assert len(pubsub.numbers(subscription)) == 10


@pytest.fixture
def typed_topic(pubsub: Service) -> str:
    definition = '{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'
    schema = f"projects/{PROJECT}/schemas/numbers-{uuid.uuid4().hex}"
    pubsub.schemas.create_schema(
        request={
            "parent": f"projects/{PROJECT}",
            "schema_id": schema.rsplit("/", 1)[1],
            "schema": {"type_": "AVRO", "definition": definition},
        }
    )
    return pubsub.topic(schema_settings={"schema": schema, "encoding": "JSON"})


def typed_rows(spark: SparkSession, count: int, bad: str) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(
        f"if({bad}, 'not json', concat('{{\"n\":', id, '}}')) as data"
    )


def test_a_message_that_the_topics_schema_refuses_fails_the_write(
    spark: SparkSession, pubsub: Service, typed_topic: str
) -> None:
    """The service's reason reaches the user."""
    text = failure_of(typed_rows(spark, 100, "id = 57"), pubsub, typed_topic)
    assert "[PENSTOCK_REFUSED]" in text
    assert "deadLetterTopic" in text


def test_refused_messages_alone_go_to_the_dead_letter_topic(
    spark: SparkSession, pubsub: Service, typed_topic: str
) -> None:
    """A bad message in a request does not take the good ones with it."""
    good = pubsub.subscription(typed_topic)
    dead, letters_of = pubsub.pair()
    frame = typed_rows(spark, 5000, "id % 1000 = 7")
    save(frame, pubsub, typed_topic, deadLetterTopic=dead)
    assert len(pubsub.drain(good)) == 4995
    letters = pubsub.drain(letters_of)
    assert [letter.data for letter in letters] == [b"not json"] * 5
    assert {letter.attributes["penstock_topic"] for letter in letters} == {typed_topic}
    assert all("refused: " in letter.attributes["penstock_error"] for letter in letters)


def test_rows_over_the_limits_go_to_the_dead_letter_topic(
    spark: SparkSession, pubsub: Service
) -> None:
    """What cannot be published is put aside, with the reason and the number of bytes cut off."""
    topic, subscription = pubsub.pair()
    dead, letters_of = pubsub.pair()
    frame = spark.range(3).selectExpr(
        "case id when 0 then 'good' when 1 then repeat('x', 10000001) end as data"
    )
    save(frame, pubsub, topic, deadLetterTopic=dead)
    assert [one.data for one in pubsub.drain(subscription)] == [b"good"]
    letters = sorted(pubsub.drain(letters_of), key=lambda letter: len(letter.data))
    assert [len(letter.data) for letter in letters] == [0, 9_000_000]
    assert letters[1].attributes["penstock_truncated_bytes"] == "1000001"


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["id as data"], "Column 'data': its type is bigint, not binary or string"),
        (["'x' as value"], "Column 'value' (string): is not one that the Pub/Sub sink takes"),
        (["'x' as data", "'y' as attributes"], "Column 'attributes': its type is string"),
        (["'x' as data", "map('k', 1) as attributes"], "map<string,int>, not map<string,string>"),
        (["cast(null as string) as data"], "Column 'data' in row 0 of the partition"),
        (["'x' as data", "map('goog', '1') as attributes"], "a key starts with 'goog'"),
        (["'x' as data", "map('k', cast(null as string)) as attributes"], "a value is null"),
        (["repeat('x', 10000001) as data"], "limit of 10,000,000 bytes"),
        (["'x' as data", "'k' as ordering_key"], "enableMessageOrdering"),
    ],
)
def test_what_cannot_be_published_is_named_before_anything_is_published(
    spark: SparkSession, pubsub: Service, columns: list[str], text: str
) -> None:
    """Bad columns and rows fail with the column, the fact and the remedy."""
    topic = pubsub.topic()
    frame = spark.range(1).selectExpr(*columns)
    assert text in failure_of(frame, pubsub, topic)
    assert pubsub.emulator.topic_counters(topic).published == 0


def test_overwriting_is_refused(spark: SparkSession, pubsub: Service) -> None:
    """A topic can only be added to."""
    frame = numbered(spark, 1)
    writer = frame.write.format("pubsub").mode("overwrite").option("topicId", pubsub.topic())
    with pytest.raises(Exception, match=r'Use \.mode\("append"\)'):
        writer.option("endpoint", pubsub.emulator.address).save()


@pytest.mark.parametrize("kind", ["error", "lose_response"])
def test_ordering_keys_keep_their_order_under_faults(
    spark: SparkSession, pubsub: Service, kind: Any
) -> None:
    """Messages of one key arrive in the order of the rows, also across retries."""
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    pubsub.emulator.inject(Fault(kind=kind, method="Publish", probability=0.3))
    frame = spark.range(0, 2000, 1, 2).selectExpr(
        "cast(id as string) as data", "if(id % 7 = 0, null, cast(id % 7 as string)) as ordering_key"
    )
    save(frame, pubsub, topic, enableMessageOrdering="true", batchRows="20")
    by_key: dict[str, list[int]] = defaultdict(list)
    for message in pubsub.drain(subscription):
        by_key[message.ordering_key].append(int(message.data))
    assert set().union(*by_key.values()) == set(range(2000))
    for key in "123456":
        for partition in (range(1000), range(1000, 2000)):
            firsts = [*dict.fromkeys(one for one in by_key[key] if one in partition)]
            assert firsts == sorted(firsts)


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Listen, and never say a word: a network that has stalled."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_stalled_network_ends_in_the_flush_timeout(
    spark: SparkSession, silent_address: str
) -> None:
    """Silence is an error after flushTimeout, not a hang."""
    writer = numbered(spark, 10, 1).write.format("pubsub").mode("append")
    writer = writer.option("endpoint", silent_address).option("flushTimeout", "1s")
    with pytest.raises(Exception, match="PENSTOCK_FLUSH_TIMEOUT"):
        writer.option("topicId", "projects/p/topics/orders").save()


def test_a_service_that_stops_answering_ends_in_the_flush_timeout(
    spark: SparkSession, pubsub: Service, tmp_path: Path
) -> None:
    """A stream whose service goes silent fails with our error."""
    topic = pubsub.topic()
    numbered(spark, 10, 1).write.parquet(str(tmp_path / "in"))
    pubsub.emulator.inject(Fault(kind="latency", method="Publish", seconds=30))
    query = stream(spark, tmp_path, pubsub, topic, flushTimeout="1s")
    with pytest.raises(Exception, match=r"PENSTOCK_FLUSH_TIMEOUT.*" + topic):
        query.awaitTermination(120)


def test_what_was_read_can_be_written_as_it_is(spark: SparkSession, pubsub: Service) -> None:
    """The columns of a read are taken by the sink; ids and times are given anew."""
    source, looked_at = pubsub.pair()
    topic, subscription = pubsub.pair()
    pubsub.publish(source, 10)
    frame = (
        spark.read.format("pubsub")
        .option("endpoint", pubsub.emulator.address)
        .option("subscriptionId", looked_at)
        .option("maxMessages", 10)
        .load()
    )
    save(frame, pubsub, topic)
    assert sorted(pubsub.numbers(subscription)) == list(range(10))


def test_secrets_show_in_no_plan(spark: SparkSession, pubsub: Service) -> None:
    """Neither a query's plan nor the SQL tab shows credentials."""
    key = '{"type": "service_account", "private_key": "SECRET-KEY"}'
    topic, subscription = pubsub.pair()
    save(numbered(spark, 1), pubsub, topic, credentials=key)
    frame = (
        spark.read.format("pubsub")
        .option("endpoint", pubsub.emulator.address)
        .option("subscriptionId", subscription)
        .option("maxMessages", 1)
        .option("credentials", key)
        .load()
    )
    assert frame.count() == 1
    plans = frame._jdf.queryExecution().toString()
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    for position in range(executions.size()):
        execution = executions.apply(position)
        plans += execution.physicalPlanDescription() + execution.details()
        plans += execution.modifiedConfigs().toString()
    assert "BatchScan pubsub" in plans
    assert "SECRET-KEY" not in plans
