"""Ordering keys: what comes in order, what is repeated, and what is not held up."""

from __future__ import annotations

import datetime

from google.pubsub_v1 import types

from tests.support.pubsub_service import Service
from tests.support.waiting import wait_for


def keyed(*names: str) -> list[types.PubsubMessage]:
    """Make messages whose key is the first letter of their data: a1, a2, b1."""
    return [types.PubsubMessage(data=name.encode(), ordering_key=name[0]) for name in names]


def names(received: list[types.ReceivedMessage]) -> list[str]:
    return [message.message.data.decode() for message in received]


def test_order_of_a_key_is_kept_over_pulls(service: Service) -> None:
    """However few are pulled at a time, a key's messages come in order."""
    topic, subscription = service.pair(enable_message_ordering=True)
    service.publish(topic, *keyed("a1", "b1", "a2", "a3", "b2"))
    seen = []
    for _ in range(5):
        received = service.pull(subscription, 1)
        seen += names(received)
        service.ack(subscription, received)
    assert seen == ["a1", "b1", "a2", "a3", "b2"]


def test_pull_gets_no_key_that_is_out(service: Service) -> None:
    """While messages of a key are with one subscriber, the next has to wait for that key."""
    topic, subscription = service.pair(enable_message_ordering=True)
    service.publish(topic, *keyed("a1", "a2", "b1"))
    first = service.pull(subscription, 1)
    assert names(first) == ["a1"]
    assert names(service.pull(subscription)) == ["b1"]
    assert service.pull(subscription) == []
    service.ack(subscription, first)
    assert names(service.pull(subscription)) == ["a2"]


def test_redelivery_of_one_repeats_the_later_ones_of_its_key(service: Service) -> None:
    """A nack brings the later messages of the key back in order, and no other key's."""
    topic, subscription = service.pair(enable_message_ordering=True)
    service.publish(topic, *keyed("a1", "a2", "b1", "a3"))
    received = service.pull(subscription)
    service.ack(subscription, received[:1])
    service.nack(subscription, received[1:2])
    assert names(service.pull(subscription)) == ["a2", "a3"]


def test_redelivery_repeats_what_was_acknowledged_out_of_order(service: Service) -> None:
    """Acknowledged messages after one that comes again are delivered again with it."""
    topic, subscription = service.pair(enable_message_ordering=True)
    service.publish(topic, *keyed("a1", "a2", "a3", "b1"))
    received = service.pull(subscription)
    service.ack(subscription, received[1:])
    assert service.emulator.counters(subscription).unacked == 1
    service.expire(subscription, 11, 1)
    again = service.pull(subscription)
    assert names(again) == ["a1", "a2", "a3"]
    service.ack(subscription, again)
    service.clock.advance(11)
    assert service.pull(subscription) == []
    assert service.emulator.counters(subscription).unacked == 0


def test_acknowledged_messages_are_kept_while_they_may_be_repeated(service: Service) -> None:
    """Memory is freed in blocks, but never of what an earlier message may bring back."""
    topic, subscription = service.pair(enable_message_ordering=True)
    service.publish(topic, *keyed("a0"))
    service.publish(topic, *keyed(*[f"{key}{n:02}" for n in range(1, 100) for key in "abcdefgh"]))
    received = service.pull(subscription, 1000)
    service.ack(subscription, received[1:])
    _sweep(service)
    service.nack(subscription, received[:1])
    assert names(service.pull(subscription)) == ["a0", *[f"a{n:02}" for n in range(1, 100)]]


def _sweep(service: Service) -> None:
    """Let the housekeeping pass over everything, seen by a snapshot that expires."""
    service.topic("swept")
    name = "projects/contract/snapshots/swept"
    reader = service.subscription("projects/contract/topics/swept", "swept")
    service.subscriber.create_snapshot(name=name, subscription=reader)
    past = datetime.datetime.fromtimestamp(1, datetime.UTC)
    service.subscriber.update_snapshot(
        request={
            "snapshot": {"name": name, "expire_time": past},
            "update_mask": {"paths": ["expire_time"]},
        }
    )
    wait_for(
        lambda: list(service.subscriber.list_snapshots(project="projects/contract")),
        lambda found: not found,
    )


def test_key_is_never_on_two_streams_at_once(service: Service) -> None:
    """All messages of a key that are out are with one stream, until they are settled."""
    topic, subscription = service.pair(enable_message_ordering=True)
    streams = [service.stream(subscription, max_outstanding_messages=2) for _ in range(3)]
    for stream in streams:
        wait_for(lambda stream=stream: stream.responses)
    for n in range(30):
        service.publish(topic, *keyed(*[f"{key}{n:02}" for key in "abcdef"]))
    settled: list[str] = []
    while len(settled) < 180:
        # What each stream holds now, by key: two streams must never hold the same.
        done = len(settled)
        wait_for(
            lambda: sum(len(stream.received) for stream in streams),
            lambda seen, done=done: seen > done,
        )
        held = [[n for n in names(s.received) if n not in settled] for s in streams]
        keys = [{name[0] for name in on_stream} for on_stream in held]
        assert sum(map(len, keys)) == len(set().union(*keys)), held
        for stream in streams:
            ready = [m for m in stream.received if m.message.data.decode() not in settled]
            service.ack(subscription, ready[:1]) if ready else None
            settled += names(ready[:1])
    for key in "abcdef":
        assert [n for n in settled if n[0] == key] == sorted(n for n in settled if n[0] == key)
    assert len(set(settled)) == 180


def test_key_of_a_broken_stream_goes_on_in_order_elsewhere(service: Service) -> None:
    """When a stream dies its keys are blocked until the leases end, then come again in order."""
    topic, subscription = service.pair(enable_message_ordering=True)
    service.publish(topic, *keyed("a1", "a2", "a3"))
    broken = service.stream(subscription, max_outstanding_messages=2)
    broken.wait_received(2)
    broken.close()
    other = service.stream(subscription)
    service.publish(topic, *keyed("b1"))
    assert names(other.wait_received(1)) == ["b1"]
    service.clock.advance(11)
    wait_for(
        lambda: [name for name in names(other.received) if name[0] == "a"],
        lambda seen: seen == ["a1", "a2", "a3"],
    )


def test_messages_without_a_key_are_not_held_up(service: Service) -> None:
    """On an ordered subscription a message without a key goes to anybody at any time."""
    topic, subscription = service.pair(enable_message_ordering=True)
    service.publish(topic, b"one", b"two", b"three")
    first = service.pull(subscription, 1)
    assert names(first) == ["one"]
    assert names(service.pull(subscription)) == ["two", "three"]
    service.nack(subscription, first)
    assert names(service.pull(subscription)) == ["one"]


def test_unordered_subscription_takes_no_notice_of_keys(service: Service) -> None:
    """Without message ordering keys neither block nor repeat anything."""
    topic, subscription = service.pair()
    service.publish(topic, *keyed("a1", "a2", "a3"))
    first = service.pull(subscription, 1)
    assert names(service.pull(subscription)) == ["a2", "a3"]
    service.nack(subscription, first)
    assert names(service.pull(subscription)) == ["a1"]


def test_backoff_of_one_message_holds_its_key_back(service: Service) -> None:
    """While a nacked message waits for its retry, no later message of its key overtakes it."""
    backoff = {
        "minimum_backoff": datetime.timedelta(seconds=20),
        "maximum_backoff": datetime.timedelta(seconds=100),
    }
    topic, subscription = service.pair(enable_message_ordering=True, retry_policy=backoff)
    service.publish(topic, *keyed("a1", "a2", "b1"))
    received = service.pull(subscription, 1)
    service.nack(subscription, received)
    assert names(service.pull(subscription)) == ["b1"]
    service.clock.advance(20.1)
    received = service.pull_some(subscription, 2)
    assert names(received) == ["a1", "a2"]
    # Now a1 has to wait longer than a2, which comes back with it.
    service.nack(subscription, received[:1])
    service.clock.advance(20.1)
    service.publish(topic, *keyed("c1"))
    assert names(service.pull_some(subscription, 1)) == ["c1"]
    assert service.pull(subscription) == []
    service.clock.advance(20)
    assert names(service.pull_some(subscription, 2)) == ["a1", "a2"]
