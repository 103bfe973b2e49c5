"""The batch read through Spark, against the emulator: it shows, and consumes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.testing import Fault
from tests.support.pubsub import PROJECT, Service
from tests.support.spark import wait_until

pytestmark = pytest.mark.spark


def load(spark: SparkSession, pubsub: Service, subscription: str, **options: Any) -> DataFrame:
    return (
        spark.read.format("pubsub")
        .option("endpoint", pubsub.emulator.address)
        .option("subscriptionId", subscription)
        .options(**options)
        .load()
    )


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.data) for row in frame.select("data").collect())


def assert_nothing_consumed(pubsub: Service, subscription: str, count: int) -> None:
    counters = pubsub.emulator.counters(subscription)
    assert (counters.acked, counters.outstanding, counters.unacked) == (0, 0, count)
    assert sorted(pubsub.numbers(subscription)) == list(range(count))


def test_a_read_shows_the_messages_and_consumes_nothing(
    spark: SparkSession, pubsub: Service
) -> None:
    """Two reads see the same messages, and afterwards a consumer gets them all."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 500)
    frame = load(spark, pubsub, subscription, maxMessages=500)
    assert numbers(frame) == list(range(500))
    assert numbers(frame) == list(range(500))
    assert_nothing_consumed(pubsub, subscription, 500)


def test_rows_have_the_columns_of_the_message(spark: SparkSession, pubsub: Service) -> None:
    """Every column carries what the publisher and the service set."""
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    message = {"data": b"\xff\x00", "attributes": {"k": "\u00e9"}, "ordering_key": "key"}
    before = time.time()
    (message_id,) = pubsub.publisher.publish(
        request={"topic": topic, "messages": [message]}
    ).message_ids
    (row,) = load(spark, pubsub, subscription, maxMessages=1).collect()
    assert row.message_id == message_id
    assert bytes(row.data) == b"\xff\x00"
    assert row.attributes == {"k": "\u00e9"}
    assert row.ordering_key == "key"
    assert row.delivery_attempt is None
    assert before - 1 < row.publish_time.timestamp() < time.time() + 1


def test_delivery_attempts_are_shown_where_they_are_counted(
    spark: SparkSession, pubsub: Service
) -> None:
    """A subscription with a dead-letter policy counts a look as an attempt."""
    policy = {"dead_letter_topic": pubsub.topic(), "max_delivery_attempts": 10}
    topic, subscription = pubsub.pair(dead_letter_policy=policy)
    pubsub.publish(topic, 1)
    frame = load(spark, pubsub, subscription, maxMessages=1)
    assert frame.collect()[0].delivery_attempt == 1
    assert frame.collect()[0].delivery_attempt == 2


def test_no_more_than_max_messages_are_shown(spark: SparkSession, pubsub: Service) -> None:
    """maxMessages bounds what is leased."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 100)
    assert load(spark, pubsub, subscription, maxMessages=30).count() == 30
    assert pubsub.emulator.counters(subscription).delivered == 30
    assert_nothing_consumed(pubsub, subscription, 100)


def test_an_early_stop_hands_everything_back(spark: SparkSession, pubsub: Service) -> None:
    """A limit ends the job before all rows are taken; still no lease stays."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 3000)
    assert len(load(spark, pubsub, subscription, maxMessages=3000).limit(5).collect()) == 5
    wait_until(
        lambda: pubsub.emulator.counters(subscription).outstanding == 0,
        state=lambda: pubsub.emulator.counters(subscription),
    )
    assert_nothing_consumed(pubsub, subscription, 3000)


def test_a_failing_job_hands_everything_back(spark: SparkSession, pubsub: Service) -> None:
    """What the user's query does with the rows does not matter."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 50)
    frame = load(spark, pubsub, subscription, maxMessages=50)
    with pytest.raises(Exception, match="told to fail"):
        frame.selectExpr("raise_error('told to fail')").collect()
    assert_nothing_consumed(pubsub, subscription, 50)


def test_an_empty_subscription_has_no_rows_after_the_period(
    spark: SparkSession, pubsub: Service
) -> None:
    """maxFetchPeriod bounds the wait."""
    _, subscription = pubsub.pair()
    began = time.monotonic()
    assert load(spark, pubsub, subscription, maxFetchPeriod="1s").count() == 0
    assert time.monotonic() - began < 20


def test_messages_delivered_twice_are_one_row(spark: SparkSession, pubsub: Service) -> None:
    """A duplicate within one read is dropped, and both leases are handed back."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 20)
    pubsub.emulator.inject(Fault(kind="duplicate", method="Pull"))
    assert numbers(load(spark, pubsub, subscription, maxMessages=100)) == list(range(20))
    pubsub.emulator.clear_faults()
    assert_nothing_consumed(pubsub, subscription, 20)


def test_passing_failures_are_ridden_out(spark: SparkSession, pubsub: Service) -> None:
    """UNAVAILABLE on Pull and on handing back costs time and nothing else."""
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, 20)
    for method in ("Pull", "ModifyAckDeadline"):
        pubsub.emulator.inject(Fault(kind="error", method=method, count=2))
    assert numbers(load(spark, pubsub, subscription, maxMessages=20)) == list(range(20))
    assert_nothing_consumed(pubsub, subscription, 20)


FILTERS = [
    "publish_time > timestamp'2020-01-01 00:00:00'",
    "publish_time < timestamp'2020-01-01 00:00:00'",
    "ordering_key is null",
    "ordering_key = 'a'",
    "not (ordering_key = 'a')",
    "ordering_key <> 'a' or ordering_key is null",
    "ordering_key in ('a', 'b')",
    "ordering_key not in ('a', 'b')",
    "ordering_key like 'a%'",
    "ordering_key not like 'a%'",
    "ordering_key <=> null",
    "attributes is not null",
    "attributes['n'] = '3'",
    "attributes['n'] = '3' and ordering_key = 'b'",
    "delivery_attempt is null",
    "delivery_attempt > 0",
    "message_id > '0'",
]


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_filter_works_where_spark_does_not_push_filters(
    spark: SparkSession, keyed: tuple[Service, str]
) -> None:
    """Spark's default is not to push; a reader that could take filters must not be refused."""
    pubsub, subscription = keyed
    frame = load(spark, pubsub, subscription, maxMessages=30)
    assert numbers(frame.where("ordering_key = 'a'")) == list(range(10, 20))


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_gives_the_same_rows_pushed_or_not(
    spark: SparkSession, keyed: tuple[Service, str], condition: str
) -> None:
    """Pushing a filter down changes the work, never the result."""
    pubsub, subscription = keyed
    frame = load(spark, pubsub, subscription, maxMessages=30)
    pushed = numbers(frame.where(condition))
    plain = sorted(
        int(row.data)
        for row in spark.createDataFrame(frame.collect(), frame.schema).where(condition).collect()
    )
    assert pushed == plain


@pytest.fixture(scope="module")
def keyed(running_service: Service) -> tuple[Service, str]:
    topic, subscription = running_service.pair(enable_message_ordering=True)
    for key in ("", "a", "ab"):
        start = {"": 0, "a": 10, "ab": 20}[key]
        messages = [
            {
                "data": str(number).encode(),
                "attributes": {"n": str(number)} if number % 2 else {},
                "ordering_key": key,
            }
            for number in range(start, start + 10)
        ]
        running_service.publisher.publish(request={"topic": topic, "messages": messages})
    return running_service, subscription


@pytest.mark.usefixtures("pushdown")
def test_a_comparison_of_publish_time_is_pushed_down(
    spark: SparkSession, keyed: tuple[Service, str]
) -> None:
    """Spark leaves the work to us: its plan has no filter of its own."""
    pubsub, subscription = keyed
    frame = load(spark, pubsub, subscription)

    def plan(condition: str) -> str:
        return str(frame.where(condition)._jdf.queryExecution().executedPlan().toString())

    assert "Filter" not in plan("publish_time > timestamp'2020-01-01 00:00:00'").replace(
        "RuntimeFilters", ""
    )
    assert "Filter (attributes" in plan("attributes['n'] = '3'")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"push_config": {"push_endpoint": "https://example.com/push"}}, "push type"),
    ],
)
def test_a_subscription_that_cannot_be_pulled_is_refused(
    spark: SparkSession, pubsub: Service, settings: dict[str, Any], text: str
) -> None:
    """The driver looks at the subscription before any job."""
    _, subscription = pubsub.pair(**settings)
    with pytest.raises(Exception, match=f"PENSTOCK_NOT_PULLABLE.*{text}"):
        load(spark, pubsub, subscription).collect()


def test_a_detached_subscription_is_refused(spark: SparkSession, pubsub: Service) -> None:
    """A detached subscription holds nothing, and says so."""
    _, subscription = pubsub.pair()
    pubsub.publisher.detach_subscription(request={"subscription": subscription})
    with pytest.raises(Exception, match=r"PENSTOCK_NOT_PULLABLE.*detached"):
        load(spark, pubsub, subscription).collect()


def test_a_missing_subscription_is_refused_with_the_remedy(
    spark: SparkSession, pubsub: Service
) -> None:
    """The text says how to create it."""
    with pytest.raises(Exception, match="PENSTOCK_NOT_FOUND") as caught:
        load(spark, pubsub, "no-such-sub", projectId=PROJECT).collect()
    assert "gcloud pubsub subscriptions create no-such-sub --project=tests" in str(caught.value)


def test_a_misspelt_option_is_refused_with_the_right_name(
    spark: SparkSession, pubsub: Service
) -> None:
    """Options are checked before anything is asked of the service."""
    with pytest.raises(Exception, match="Did you mean 'maxMessages'"):
        load(spark, pubsub, "some-sub", projectId=PROJECT, maxMesages=3).collect()
