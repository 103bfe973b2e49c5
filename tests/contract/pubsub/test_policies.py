"""What decides over delivery: filters, dead-letter topics and retry policies."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.cloud.pubsub_v1.subscriber.message import Message
from google.protobuf import field_mask_pb2

from tests.support.pubsub_service import Service
from tests.support.waiting import wait_for


def events(*kinds: str) -> list[dict[str, Any]]:
    return [{"data": kind.encode(), "attributes": {"kind": kind}} for kind in kinds]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('attributes.kind = "order"', [b"order"]),
        ('attributes.kind != "order"', [b"refund", b"plain"]),
        ('hasPrefix(attributes.kind, "re")', [b"refund"]),
        ("attributes:kind", [b"order", b"refund"]),
        ("NOT attributes:kind", [b"plain"]),
        ('attributes:kind AND NOT attributes.kind = "order"', [b"refund"]),
    ],
)
def test_subscription_gets_only_what_its_filter_lets_through(
    service: Service, text: str, expected: list[bytes]
) -> None:
    """A filter decides by attributes; what it holds back counts as acknowledged."""
    topic, subscription = service.pair(filter=text)
    service.publish(topic, *events("order", "refund"), b"plain")
    assert service.pull_data(subscription) == expected
    assert service.emulator.counters(subscription).unacked == len(expected)


def test_filtered_messages_do_not_wake_or_block_a_stream(service: Service) -> None:
    """A stream goes on past any number of messages that are not for it."""
    topic, subscription = service.pair(filter='attributes.kind = "order"')
    stream = service.stream(subscription, max_outstanding_messages=1)
    for _ in range(5):
        service.publish(topic, *events("refund") * 200)
    service.publish(topic, *events("order"))
    stream.wait_received(1)
    wait_for(lambda: service.emulator.topic_counters(topic), lambda seen: seen.stored < 1000)


def test_spent_message_is_forwarded_and_removed(service: Service) -> None:
    """After max_delivery_attempts a message goes to the dead-letter topic with its origin."""
    dead = service.topic("dead")
    reader = service.subscription(dead, "dead-reader")
    topic, subscription = service.pair(
        dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 5}
    )
    message = {"data": b"bad", "attributes": {"mine": "1"}, "ordering_key": "k"}
    service.publish(topic, message, b"good")
    published = datetime.datetime.fromtimestamp(service.clock.time(), datetime.UTC)
    for attempt in range(1, 6):
        assert service.pull(reader) == []
        received = {r.message.data: r for r in service.pull(subscription)}
        assert received[b"bad"].delivery_attempt == attempt
        if attempt == 1:
            service.ack(subscription, [received[b"good"]])
        # A nack and a lease that ends count alike.
        if attempt % 2:
            service.nack(subscription, [received[b"bad"]])
        else:
            service.expire(subscription, 10.1, 1)
    assert service.pull(subscription) == []
    (forwarded,) = service.pull(reader)
    attributes = dict(forwarded.message.attributes)
    time = attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime")
    assert datetime.datetime.fromisoformat(time) == published
    assert attributes == {
        "mine": "1",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "reader",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "contract",
    }
    assert forwarded.message.data == b"bad"
    assert forwarded.message.ordering_key == "k"
    counters = service.emulator.counters(subscription)
    assert (counters.dead_lettered, counters.acked, counters.unacked) == (1, 1, 0)


def test_delivery_attempt_is_shown_with_a_dead_letter_policy_only(service: Service) -> None:
    """Without the policy the field is 0, as in the service; it appears with an update."""
    dead = service.topic("dead")
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    received = service.pull(subscription)
    assert received[0].delivery_attempt == 0
    service.nack(subscription, received)
    service.subscriber.update_subscription(
        request={
            "subscription": {
                "name": subscription,
                "dead_letter_policy": {"dead_letter_topic": dead},
            },
            "update_mask": field_mask_pb2.FieldMask(paths=["dead_letter_policy"]),
        }
    )
    assert service.pull(subscription)[0].delivery_attempt == 2


def test_client_shows_the_delivery_attempt(service: Service) -> None:
    """Message.delivery_attempt of the official client counts up."""
    dead = service.topic("dead")
    topic, subscription = service.pair(dead_letter_policy={"dead_letter_topic": dead})
    service.publish(topic, b"x")
    attempts: list[int | None] = []

    def refuse(message: Message) -> None:
        attempts.append(message.delivery_attempt)
        message.nack()

    future = service.subscriber.subscribe(subscription, callback=refuse)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.dead_lettered == 1)
    future.cancel()
    future.result(timeout=20)
    assert attempts == [1, 2, 3, 4, 5]


def test_spent_message_stays_while_its_dead_letter_topic_is_gone(service: Service) -> None:
    """Nothing is lost when there is nowhere to forward to."""
    dead = service.topic("dead")
    topic, subscription = service.pair(dead_letter_policy={"dead_letter_topic": dead})
    service.publisher.delete_topic(topic=dead)
    service.publish(topic, b"x")
    for attempt in range(1, 9):
        received = service.pull(subscription)
        assert received[0].delivery_attempt == attempt
        service.nack(subscription, received)
    assert service.emulator.counters(subscription).unacked == 1
    found = service.subscriber.get_subscription(subscription=subscription)
    assert found.dead_letter_policy.dead_letter_topic == "_deleted-topic_"
    service.subscriber.update_subscription(
        request={
            "subscription": {"name": subscription, "ack_deadline_seconds": 20},
            "update_mask": field_mask_pb2.FieldMask(paths=["ack_deadline_seconds"]),
        }
    )


def test_retry_policy_holds_a_refused_message_back(service: Service) -> None:
    """The wait doubles from the minimum up to the maximum; other messages are not held up."""
    policy = {
        "minimum_backoff": datetime.timedelta(seconds=10),
        "maximum_backoff": datetime.timedelta(seconds=35),
    }
    topic, subscription = service.pair(retry_policy=policy)
    service.publish(topic, b"x")
    received = service.pull(subscription)
    for wait in (10, 20, 35, 35):
        service.nack(subscription, received)
        service.clock.advance(wait - 0.5)
        service.publish(topic, b"other")
        other = service.pull_some(subscription, 1)
        assert other[0].message.data == b"other"
        service.ack(subscription, other)
        assert service.pull(subscription) == []
        service.clock.advance(0.6)
        received = service.pull_some(subscription, 1)
        assert received[0].message.data == b"x"


def test_retry_policy_counts_for_expired_leases_too(service: Service) -> None:
    """A message whose lease ended waits as one that was refused."""
    policy = {"minimum_backoff": datetime.timedelta(seconds=100)}
    topic, subscription = service.pair(retry_policy=policy)
    service.publish(topic, b"x")
    service.pull(subscription)
    service.expire(subscription, 10.1, 1)
    assert service.pull(subscription) == []
    counters = service.emulator.counters(subscription)
    assert (counters.outstanding, counters.unacked) == (0, 1)
    service.clock.advance(100)
    assert [m.message.data for m in service.pull_some(subscription, 1)] == [b"x"]


def test_message_that_waits_can_be_acknowledged(service: Service) -> None:
    """A late ack counts during the backoff as well."""
    policy = {"minimum_backoff": datetime.timedelta(seconds=100)}
    topic, subscription = service.pair(retry_policy=policy)
    service.publish(topic, b"x")
    received = service.pull(subscription)
    service.nack(subscription, received)
    service.ack(subscription, received)
    service.clock.advance(700)
    service.publish(topic, b"later")
    assert [m.message.data for m in service.pull_some(subscription, 1)] == [b"later"]
    assert service.emulator.counters(subscription).unacked == 1
