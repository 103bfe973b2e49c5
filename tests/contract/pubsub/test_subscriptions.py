"""Subscriptions: creating, reading, changing, listing, detaching and deleting them."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

from tests.support.pubsub_service import PROJECT, Service, fields_of
from tests.support.waiting import wait_for

SUBSCRIPTION = f"{PROJECT}/subscriptions/reader"


def update(service: Service, settings: dict[str, Any], *paths: str) -> types.Subscription:
    mask = field_mask_pb2.FieldMask(paths=paths)
    return service.subscriber.update_subscription(
        request={"subscription": settings, "update_mask": mask}
    )


def test_subscription_gets_the_services_defaults(service: Service) -> None:
    """What is left out is 10 s to acknowledge, 7 days of retention, 31 days to expire."""
    topic = service.topic()
    service.subscription(topic)
    found = service.subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert found.topic == topic
    assert found.ack_deadline_seconds == 10
    assert found.message_retention_duration == datetime.timedelta(days=7)
    assert found.expiration_policy.ttl == datetime.timedelta(days=31)
    assert found.state == types.Subscription.State.ACTIVE
    assert not found.detached
    assert "retry_policy" not in found
    assert "dead_letter_policy" not in found


def test_exactly_once_subscription_has_60_seconds_by_default(service: Service) -> None:
    """With exactly-once delivery the deadline that is left out is 60 s."""
    service.pair(enable_exactly_once_delivery=True)
    found = service.subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert found.ack_deadline_seconds == 60


def test_subscription_is_read_back_as_it_was_created(service: Service) -> None:
    """Every setting that a caller gives is kept."""
    dead = service.topic("dead")
    topic = service.topic(message_retention_duration=datetime.timedelta(days=1))
    settings = {
        "name": SUBSCRIPTION,
        "topic": topic,
        "ack_deadline_seconds": 33,
        "retain_acked_messages": True,
        "message_retention_duration": datetime.timedelta(hours=5),
        "labels": {"a": "b"},
        "enable_message_ordering": True,
        "expiration_policy": {"ttl": datetime.timedelta(days=2)},
        "filter": 'attributes.kind = "a"',
        "dead_letter_policy": {"dead_letter_topic": dead, "max_delivery_attempts": 7},
        "retry_policy": {
            "minimum_backoff": datetime.timedelta(seconds=1),
            "maximum_backoff": datetime.timedelta(seconds=20),
        },
        "enable_exactly_once_delivery": True,
    }
    created = service.subscriber.create_subscription(request=settings)
    found = service.subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert found == created
    expected = types.Subscription(
        **settings,
        state=types.Subscription.State.ACTIVE,
        topic_message_retention_duration=datetime.timedelta(days=1),
    )
    assert found == expected


def test_output_only_fields_of_a_new_subscription_are_ignored(service: Service) -> None:
    """A caller cannot create a subscription that is detached already."""
    service.pair(detached=True, topic_message_retention_duration=datetime.timedelta(days=1))
    found = service.subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert not found.detached
    assert "topic_message_retention_duration" not in found


def test_subscription_that_exists_is_not_created_again(service: Service) -> None:
    """The second creation of a name fails with ALREADY_EXISTS."""
    topic, _ = service.pair()
    with pytest.raises(exceptions.AlreadyExists, match=r"resource=reader"):
        service.subscription(topic)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"name": "reader"}, "name"),
        ({"name": f"{PROJECT}/subscriptions/goog1"}, "name"),
        ({"topic": "orders"}, "topic"),
        ({"ack_deadline_seconds": 9}, "ack_deadline_seconds"),
        ({"ack_deadline_seconds": 601}, "ack_deadline_seconds"),
        (
            {"message_retention_duration": datetime.timedelta(minutes=9)},
            "message_retention_duration",
        ),
        ({"message_retention_duration": datetime.timedelta(days=32)}, "message_retention_duration"),
        ({"expiration_policy": {"ttl": datetime.timedelta(hours=23)}}, "expiration_policy.ttl"),
        ({"filter": "attributes.kind = 1"}, "filter"),
        ({"filter": "attributes:" + "k" * 300}, "filter"),
        ({"labels": {"Upper": ""}}, "labels"),
        ({"dead_letter_policy": {"max_delivery_attempts": 5}}, "dead_letter_policy"),
        (
            {
                "dead_letter_policy": {
                    "dead_letter_topic": f"{PROJECT}/topics/orders",
                    "max_delivery_attempts": 4,
                }
            },
            "dead_letter_policy.max_delivery_attempts",
        ),
        (
            {"dead_letter_policy": {"dead_letter_topic": "dead"}},
            "dead_letter_policy.dead_letter_topic",
        ),
        (
            {"retry_policy": {"maximum_backoff": datetime.timedelta(seconds=601)}},
            "retry_policy.maximum_backoff",
        ),
        (
            {"retry_policy": {"minimum_backoff": datetime.timedelta(seconds=-1)}},
            "retry_policy.minimum_backoff",
        ),
        (
            {
                "retry_policy": {
                    "minimum_backoff": datetime.timedelta(seconds=20),
                    "maximum_backoff": datetime.timedelta(seconds=10),
                }
            },
            "retry_policy",
        ),
        (
            {
                "enable_exactly_once_delivery": True,
                "push_config": {"push_endpoint": "https://example.com"},
            },
            "enable_exactly_once_delivery",
        ),
    ],
)
def test_bad_setting_is_refused_and_names_its_field(
    service: Service, settings: dict[str, Any], field: str
) -> None:
    """A value that the service would not take is INVALID_ARGUMENT with the field."""
    request = {"name": SUBSCRIPTION, "topic": service.topic(), **settings}
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.subscriber.create_subscription(request=request)
    assert fields_of(caught.value) == [field]
    assert list(service.subscriber.list_subscriptions(project=PROJECT)) == []


def test_subscription_of_an_unknown_topic_is_refused(service: Service) -> None:
    """A topic, or a dead-letter topic, that does not exist is NOT_FOUND."""
    with pytest.raises(exceptions.NotFound, match=r"resource=none"):
        service.subscription(f"{PROJECT}/topics/none")
    topic = service.topic()
    policy = {"dead_letter_topic": f"{PROJECT}/topics/none"}
    with pytest.raises(exceptions.NotFound, match=r"resource=none"):
        service.subscription(topic, dead_letter_policy=policy)


def test_update_changes_what_the_mask_names_and_nothing_else(service: Service) -> None:
    """An update replaces the masked fields whole and leaves the others."""
    _, subscription = service.pair(labels={"a": "1"})
    settings = {"name": subscription, "labels": {"b": "2"}, "ack_deadline_seconds": 99}
    updated = update(service, settings, "ack_deadline_seconds")
    assert updated.ack_deadline_seconds == 99
    assert dict(updated.labels) == {"a": "1"}
    updated = update(service, settings, "labels")
    assert dict(updated.labels) == {"b": "2"}
    assert service.subscriber.get_subscription(subscription=subscription) == updated


def test_update_clears_policies_and_restores_defaults(service: Service) -> None:
    """A masked field without a value goes back to its default."""
    dead = service.topic("dead")
    _, subscription = service.pair(
        ack_deadline_seconds=100,
        retry_policy={},
        dead_letter_policy={"dead_letter_topic": dead},
        expiration_policy={"ttl": datetime.timedelta(days=2)},
    )
    before = service.subscriber.get_subscription(subscription=subscription)
    assert before.retry_policy.minimum_backoff == datetime.timedelta(seconds=10)
    assert before.dead_letter_policy.max_delivery_attempts == 5
    paths = ("ack_deadline_seconds", "retry_policy", "dead_letter_policy", "expiration_policy")
    updated = update(service, {"name": subscription}, *paths)
    assert updated.ack_deadline_seconds == 10
    assert "retry_policy" not in updated
    assert "dead_letter_policy" not in updated
    assert updated.expiration_policy.ttl == datetime.timedelta(days=31)


@pytest.mark.parametrize("path", ["topic", "filter", "enable_message_ordering", "name", "nosuch"])
def test_fixed_settings_cannot_be_updated(service: Service, path: str) -> None:
    """Topic, filter and ordering are for the life of a subscription."""
    _, subscription = service.pair()
    with pytest.raises(exceptions.InvalidArgument) as caught:
        update(service, {"name": subscription, "filter": "attributes:a"}, path)
    assert fields_of(caught.value) == ["update_mask"]


def test_update_is_checked_like_creation(service: Service) -> None:
    """A bad value in an update is refused and changes nothing."""
    _, subscription = service.pair()
    before = service.subscriber.get_subscription(subscription=subscription)
    with pytest.raises(exceptions.InvalidArgument) as caught:
        update(service, {"name": subscription, "ack_deadline_seconds": 700}, "ack_deadline_seconds")
    assert fields_of(caught.value) == ["ack_deadline_seconds"]
    assert service.subscriber.get_subscription(subscription=subscription) == before


def test_subscriptions_are_listed_in_pages(service: Service) -> None:
    """Pages together have every subscription of the project once."""
    topic = service.topic()
    made = [service.subscription(topic, f"sub-{n}") for n in range(7)]
    pages = service.subscriber.list_subscriptions(request={"project": PROJECT, "page_size": 3})
    listed = [[found.name for found in page.subscriptions] for page in pages.pages]
    assert [len(names) for names in listed] == [3, 3, 1]
    assert [name for names in listed for name in names] == made


def test_deleted_subscription_is_not_found(service: Service) -> None:
    """After its deletion a subscription is unknown to all methods."""
    _, subscription = service.pair()
    service.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(exceptions.NotFound):
        service.subscriber.get_subscription(subscription=subscription)
    with pytest.raises(exceptions.NotFound):
        service.pull(subscription)
    with pytest.raises(exceptions.NotFound):
        service.subscriber.acknowledge(subscription=subscription, ack_ids=["x"])
    with pytest.raises(exceptions.NotFound):
        service.subscriber.delete_subscription(subscription=subscription)


def test_recreated_subscription_starts_empty_and_refuses_old_ack_ids(service: Service) -> None:
    """A new subscription of an old name has nothing of the old one."""
    topic, subscription = service.pair()
    service.publish(topic, b"old")
    received = service.pull(subscription)
    service.subscriber.delete_subscription(subscription=subscription)
    service.subscription(topic)
    assert service.pull(subscription) == []
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.ack(subscription, received)
    assert fields_of(caught.value) == ["ack_ids"]


def test_subscription_sees_only_what_is_published_after_it(service: Service) -> None:
    """Messages from before a subscription are not for it."""
    topic = service.topic()
    service.publish(topic, b"before")
    subscription = service.subscription(topic)
    service.publish(topic, b"after")
    assert service.pull_data(subscription) == [b"after"]


def test_deleted_topic_leaves_its_subscriptions_their_messages(service: Service) -> None:
    """The backlog outlives the topic, whose name shows as _deleted-topic_."""
    topic, subscription = service.pair()
    service.publish(topic, b"kept")
    service.publisher.delete_topic(topic=topic)
    found = service.subscriber.get_subscription(subscription=subscription)
    assert found.topic == "_deleted-topic_"
    service.topic()
    service.publish(topic, b"of the new topic")
    received = service.pull(subscription)
    assert [message.message.data for message in received] == [b"kept"]
    service.ack(subscription, received)
    assert service.emulator.counters(subscription).unacked == 0
    assert list(service.publisher.list_topic_subscriptions(topic=topic)) == []


def test_detached_subscription_loses_its_backlog_and_cannot_pull(service: Service) -> None:
    """Detaching drops the messages, and pulling then is FAILED_PRECONDITION."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    stream = service.stream(subscription)
    stream.wait_received(1)
    service.publisher.detach_subscription(request={"subscription": subscription})
    assert service.subscriber.get_subscription(subscription=subscription).detached
    assert isinstance(stream.wait_error(), exceptions.FailedPrecondition)
    assert service.emulator.counters(subscription).unacked == 0
    for call in (service.pull, lambda name: service.subscriber.seek(_to_start(name))):
        with pytest.raises(exceptions.FailedPrecondition):
            call(subscription)
    assert list(service.publisher.list_topic_subscriptions(topic=topic)) == []


def _to_start(subscription: str) -> dict[str, Any]:
    time = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return {"subscription": subscription, "time": time}


def test_detached_subscription_keeps_no_messages_of_its_topic(service: Service) -> None:
    """What is acknowledged elsewhere is freed, also when a detached subscription remains."""
    topic, detached = service.pair()
    service.publisher.detach_subscription(request={"subscription": detached})
    reader = service.subscription(topic, "other")
    service.publish(topic, *[b"x"] * 100)
    service.ack(reader, service.pull(reader, 100))
    wait_for(
        lambda: service.emulator.topic_counters(topic),
        lambda seen: seen.stored == 0 and seen.stored_bytes == 0,
    )


def test_push_subscription_cannot_be_pulled(service: Service) -> None:
    """A push configuration makes pulling FAILED_PRECONDITION; without it pulling works again."""
    topic, subscription = service.pair()
    push = types.PushConfig(push_endpoint="https://example.com/push")
    service.subscriber.modify_push_config(subscription=subscription, push_config=push)
    found = service.subscriber.get_subscription(subscription=subscription)
    assert found.push_config.push_endpoint == "https://example.com/push"
    with pytest.raises(exceptions.FailedPrecondition):
        service.pull(subscription)
    service.subscriber.modify_push_config(subscription=subscription, push_config=types.PushConfig())
    service.publish(topic, b"x")
    assert service.pull_data(subscription) == [b"x"]


def test_exactly_once_subscription_refuses_a_push_configuration(service: Service) -> None:
    """Exactly-once delivery is for pulling only."""
    _, subscription = service.pair(enable_exactly_once_delivery=True)
    push = types.PushConfig(push_endpoint="https://example.com/push")
    with pytest.raises(exceptions.InvalidArgument):
        service.subscriber.modify_push_config(subscription=subscription, push_config=push)


def test_topic_retention_shows_on_its_subscriptions(service: Service) -> None:
    """A subscription shows its topic's retention, also when that changes."""
    topic, subscription = service.pair()

    def shown() -> object:
        found = service.subscriber.get_subscription(subscription=subscription)
        is_set = "topic_message_retention_duration" in found
        return found.topic_message_retention_duration if is_set else None

    assert shown() is None
    for hours in (2, 0):
        changed = {"name": topic}
        if hours:
            changed["message_retention_duration"] = datetime.timedelta(hours=hours)
        mask = field_mask_pb2.FieldMask(paths=["message_retention_duration"])
        service.publisher.update_topic(request={"topic": changed, "update_mask": mask})
        assert shown() == (datetime.timedelta(hours=hours) if hours else None)
