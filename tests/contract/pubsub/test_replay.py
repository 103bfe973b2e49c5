"""Seek, snapshots, and how long messages and subscriptions are kept."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

from tests.support.pubsub_service import PROJECT, Service, fields_of
from tests.support.waiting import wait_for

SNAPSHOT = f"{PROJECT}/snapshots/snap"
HOUR = datetime.timedelta(hours=1)
DAY_SECONDS = 86400


def at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def seek(service: Service, subscription: str, **target: Any) -> None:
    service.subscriber.seek(request={"subscription": subscription, **target})


def publish_and_ack(service: Service, topic: str, subscription: str, *data: bytes) -> None:
    service.publish(topic, *data)
    service.ack(subscription, service.pull(subscription))


def swept(service: Service, topic: str) -> None:
    """Wait until the housekeeping has freed all that nobody needs (a later message is left)."""
    wait_for(lambda: service.emulator.topic_counters(topic), lambda seen: seen.stored == 0)


def test_seek_to_a_time_replays_retained_messages(service: Service) -> None:
    """With retain_acked_messages everything since the time is delivered again, in order."""
    topic, subscription = service.pair(retain_acked_messages=True)
    publish_and_ack(service, topic, subscription, b"a")
    service.clock.advance(100)
    since = service.clock.time()
    publish_and_ack(service, topic, subscription, b"b", b"c")
    service.clock.advance(100)
    assert service.pull(subscription) == []
    seek(service, subscription, time=at(since))
    assert service.pull_data(subscription) == [b"b", b"c"]
    seek(service, subscription, time=at(0))
    assert service.pull_data(subscription) == [b"a", b"b", b"c"]
    assert service.emulator.counters(subscription).unacked == 3


def test_seek_forward_acknowledges_what_lies_before(service: Service) -> None:
    """A seek to a later time drops the older messages, leased ones too."""
    topic, subscription = service.pair()
    service.publish(topic, b"a", b"b")
    service.pull(subscription, 1)
    service.clock.advance(10)
    since = service.clock.time()
    service.publish(topic, b"c")
    seek(service, subscription, time=at(since))
    assert service.pull_data(subscription) == [b"c"]
    seek(service, subscription, time=at(service.clock.time() + 1000))
    assert service.emulator.counters(subscription).unacked == 0
    assert service.pull(subscription) == []


def test_seek_does_not_bring_back_what_was_not_retained(service: Service) -> None:
    """Without retention acknowledged messages stay gone, also if another reader has them."""
    topic, subscription = service.pair()
    service.subscription(topic, "slow")
    publish_and_ack(service, topic, subscription, b"acked")
    service.publish(topic, b"open")
    seek(service, subscription, time=at(0))
    assert service.pull_data(subscription) == [b"open"]


def test_seek_does_not_reach_back_before_the_subscription(service: Service) -> None:
    """Messages from before a subscription are not its own, unless the topic retains them."""
    topic = service.topic()
    service.subscription(topic, "older")
    service.publish(topic, b"before")
    subscription = service.subscription(topic, retain_acked_messages=True)
    publish_and_ack(service, topic, subscription, b"after")
    seek(service, subscription, time=at(0))
    assert service.pull_data(subscription) == [b"after"]


def test_topic_retention_lets_a_new_subscription_read_the_past(service: Service) -> None:
    """A topic with retention keeps messages without any subscription, for a later seek."""
    topic = service.topic(message_retention_duration=HOUR)
    service.publish(topic, b"a", b"b")
    service.clock.advance(60)
    subscription = service.subscription(topic)
    service.publish(topic, b"c")
    assert service.pull_data(subscription) == [b"c"]
    seek(service, subscription, time=at(0))
    assert service.pull_data(subscription) == [b"a", b"b", b"c"]


def test_topic_retention_ends(service: Service) -> None:
    """After its time a topic's messages are freed and cannot be sought any more."""
    topic = service.topic(message_retention_duration=HOUR)
    service.publish(topic, b"old")
    service.clock.advance(1800)
    service.publish(topic, b"newer")
    service.clock.advance(1801)
    subscription = service.subscription(topic)
    seek(service, subscription, time=at(0))
    assert service.pull_data(subscription) == [b"newer"]
    service.ack(subscription, service.pull(subscription) or _leased(service, subscription))
    service.clock.advance(1801)
    swept(service, topic)


def _leased(service: Service, subscription: str) -> list[types.ReceivedMessage]:
    service.clock.advance(11)
    return service.pull_some(subscription, 1)


def test_filter_holds_for_replayed_messages(service: Service) -> None:
    """A seek does not bring in what the subscription's filter keeps out."""
    topic = service.topic(message_retention_duration=HOUR)
    service.publish(topic, {"data": b"no"}, {"data": b"yes", "attributes": {"k": ""}})
    subscription = service.subscription(topic, filter="attributes:k")
    seek(service, subscription, time=at(0))
    assert service.pull_data(subscription) == [b"yes"]


def test_snapshot_brings_back_the_state_it_was_taken_in(service: Service) -> None:
    """A seek to a snapshot replays what was open then, and all that came later."""
    topic, subscription = service.pair()
    service.publish(topic, b"acked", b"open-1", b"open-2")
    received = service.pull(subscription)
    service.ack(subscription, received[:1])
    service.subscriber.create_snapshot(name=SNAPSHOT, subscription=subscription)
    service.ack(subscription, received[1:])
    publish_and_ack(service, topic, subscription, b"later")
    assert service.emulator.counters(subscription).unacked == 0
    for _ in range(2):
        seek(service, subscription, snapshot=SNAPSHOT)
        again = service.pull(subscription)
        assert [m.message.data for m in again] == [b"open-1", b"open-2", b"later"]
        service.ack(subscription, again)


def test_snapshot_moves_another_subscription(service: Service) -> None:
    """A snapshot of one subscription sets the state of another one of the same topic."""
    topic, subscription = service.pair()
    other = service.subscription(topic, "other")
    service.publish(topic, b"a", b"b")
    service.ack(subscription, service.pull(subscription, 1))
    service.subscriber.create_snapshot(name=SNAPSHOT, subscription=subscription)
    seek(service, other, snapshot=SNAPSHOT)
    assert service.pull_data(other) == [b"b"]


def test_messages_of_a_snapshot_are_kept_until_it_is_deleted(service: Service) -> None:
    """A snapshot holds what it needs, also when all else is acknowledged and swept."""
    topic, subscription = service.pair()
    service.publish(topic, *[b"%d" % n for n in range(700)])
    service.subscriber.create_snapshot(name=SNAPSHOT, subscription=subscription)
    service.ack(subscription, service.pull_some(subscription, 700))
    publish_and_ack(service, topic, subscription, b"later")
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.unacked == 0)
    marker, reader = service.topic("marker"), f"{PROJECT}/subscriptions/marker"
    service.subscription(marker, "marker")
    publish_and_ack(service, marker, reader, b"x")
    swept(service, marker)
    seek(service, subscription, snapshot=SNAPSHOT)
    again = service.pull_some(subscription, 701)
    assert [m.message.data for m in again] == [*[b"%d" % n for n in range(700)], b"later"]
    service.ack(subscription, again)
    service.subscriber.delete_snapshot(snapshot=SNAPSHOT)
    swept(service, topic)


def test_snapshots_are_created_read_changed_listed_and_deleted(service: Service) -> None:
    """Snapshots have the methods of a resource."""
    topic, subscription = service.pair()
    created = service.subscriber.create_snapshot(
        request={"name": SNAPSHOT, "subscription": subscription, "labels": {"a": "1"}}
    )
    assert created.topic == topic
    assert created.expire_time.timestamp() == service.clock.time() + 7 * DAY_SECONDS
    assert service.subscriber.get_snapshot(snapshot=SNAPSHOT) == created
    with pytest.raises(exceptions.AlreadyExists):
        service.subscriber.create_snapshot(name=SNAPSHOT, subscription=subscription)
    updated = service.subscriber.update_snapshot(
        request={
            "snapshot": {"name": SNAPSHOT, "labels": {"b": "2"}},
            "update_mask": field_mask_pb2.FieldMask(paths=["labels"]),
        }
    )
    assert dict(updated.labels) == {"b": "2"}
    others = [f"{PROJECT}/snapshots/more-{n}" for n in range(4)]
    for name in others:
        service.subscriber.create_snapshot(name=name, subscription=subscription)
    pages = service.subscriber.list_snapshots(request={"project": PROJECT, "page_size": 2}).pages
    listed = [[found.name for found in page.snapshots] for page in pages]
    assert listed == [others[:2], others[2:], [SNAPSHOT]]
    service.subscriber.delete_snapshot(snapshot=SNAPSHOT)
    for call in (service.subscriber.get_snapshot, service.subscriber.delete_snapshot):
        with pytest.raises(exceptions.NotFound):
            call(snapshot=SNAPSHOT)


def test_refused_change_of_a_snapshot_changes_nothing(service: Service) -> None:
    """Bad labels are refused, and the old ones stay."""
    _, subscription = service.pair()
    service.subscriber.create_snapshot(name=SNAPSHOT, subscription=subscription)
    with pytest.raises(exceptions.InvalidArgument):
        service.subscriber.update_snapshot(
            request={
                "snapshot": {"name": SNAPSHOT, "labels": {"Bad": ""}},
                "update_mask": field_mask_pb2.FieldMask(paths=["labels"]),
            }
        )
    assert not service.subscriber.get_snapshot(snapshot=SNAPSHOT).labels


def test_snapshot_lives_seven_days_less_the_age_of_the_backlog(service: Service) -> None:
    """The older the oldest open message, the sooner a snapshot ends; under an hour is refused."""
    topic, subscription = service.pair(message_retention_duration=datetime.timedelta(days=20))
    service.publish(topic, b"x")
    published = service.clock.time()
    service.clock.advance(2 * DAY_SECONDS)
    created = service.subscriber.create_snapshot(name=SNAPSHOT, subscription=subscription)
    assert created.expire_time.timestamp() == published + 7 * DAY_SECONDS
    service.clock.advance(5 * DAY_SECONDS - 3599)
    with pytest.raises(exceptions.FailedPrecondition):
        service.subscriber.create_snapshot(
            name=f"{PROJECT}/snapshots/late", subscription=subscription
        )
    service.clock.advance(3600)
    wait_for(
        lambda: list(service.subscriber.list_snapshots(project=PROJECT)), lambda found: not found
    )


def test_seek_to_a_foreign_snapshot_is_refused(service: Service) -> None:
    """A snapshot is good for the subscriptions of its own topic only."""
    _, subscription = service.pair()
    other = service.subscription(service.topic("other"), "other")
    service.subscriber.create_snapshot(name=SNAPSHOT, subscription=other)
    with pytest.raises(exceptions.InvalidArgument) as caught:
        seek(service, subscription, snapshot=SNAPSHOT)
    assert fields_of(caught.value) == ["snapshot"]
    with pytest.raises(exceptions.NotFound):
        seek(service, subscription, snapshot=f"{PROJECT}/snapshots/none")
    with pytest.raises(exceptions.InvalidArgument) as caught:
        seek(service, subscription)
    assert fields_of(caught.value) == ["target"]


def test_seek_takes_effect_on_open_streams(service: Service) -> None:
    """A stream that waits delivers what a seek brought back, and its limits count anew."""
    topic, subscription = service.pair(retain_acked_messages=True)
    service.publish(topic, b"a", b"b", b"c")
    stream = service.stream(subscription, max_outstanding_messages=3)
    received = stream.wait_received(3)
    stream.ack(received[:2])
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 2)
    seek(service, subscription, time=at(0))
    assert [m.message.data for m in stream.wait_received(6)[3:]] == [b"a", b"b", b"c"]
    assert service.emulator.counters(subscription).outstanding == 3
    stream.ack(stream.received[3:])
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.unacked == 0)


def test_seek_on_an_ordered_subscription_keeps_the_order(service: Service) -> None:
    """After a seek a key starts again from its first message, on whatever stream."""
    topic, subscription = service.pair(enable_message_ordering=True, retain_acked_messages=True)
    service.publish(topic, *[{"data": b"%d" % n, "ordering_key": "k"} for n in range(20)])
    received = service.pull(subscription, 10)
    service.ack(subscription, received[:5])
    seek(service, subscription, time=at(0))
    seen = []
    while len(seen) < 20:
        received = service.pull(subscription, 3)
        seen += [int(m.message.data) for m in received]
        service.ack(subscription, received)
    assert seen == list(range(20))


def test_open_messages_are_dropped_after_their_retention(service: Service) -> None:
    """A subscription gives up on messages older than message_retention_duration."""
    topic, subscription = service.pair(message_retention_duration=HOUR)
    service.publish(topic, b"old", b"leased")
    service.pull(subscription, 1)
    service.clock.advance(1800)
    service.publish(topic, b"new")
    service.clock.advance(1801)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.unacked == 1)
    assert service.pull_data(subscription) == [b"new"]


def test_retained_acked_messages_end_with_the_retention(service: Service) -> None:
    """Acknowledged messages are kept for a seek as long as the subscription says, not longer."""
    topic, subscription = service.pair(retain_acked_messages=True, message_retention_duration=HOUR)
    publish_and_ack(service, topic, subscription, b"old")
    service.clock.advance(1800)
    publish_and_ack(service, topic, subscription, b"new")
    service.clock.advance(1801)
    seek(service, subscription, time=at(0))
    again = service.pull(subscription)
    assert [m.message.data for m in again] == [b"new"]
    service.ack(subscription, again)
    service.clock.advance(1801)
    swept(service, topic)


def test_unused_subscription_expires(service: Service) -> None:
    """After its ttl without any use a subscription is gone; use and streams prevent that."""
    ttl = {"ttl": datetime.timedelta(days=1)}
    topic = service.topic()
    idle = service.subscription(topic, "idle", expiration_policy=ttl)
    used = service.subscription(topic, "used", expiration_policy=ttl)
    streaming = service.subscription(topic, "streaming", expiration_policy=ttl)
    for_ever = service.subscription(topic, "for-ever", expiration_policy={})
    stream = service.stream(streaming)
    wait_for(lambda: stream.responses)
    for _ in range(3):
        service.clock.advance(DAY_SECONDS / 2)
        service.pull(used)
    wait_for(
        lambda: [found.name for found in service.subscriber.list_subscriptions(project=PROJECT)],
        lambda found: idle not in found,
    )
    left = [found.name for found in service.subscriber.list_subscriptions(project=PROJECT)]
    assert left == [for_ever, streaming, used]
