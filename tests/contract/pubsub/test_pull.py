"""Pull, Acknowledge and ModifyAckDeadline: leases, and how they end."""

from __future__ import annotations

import threading
import time

import pytest
from google.api_core import exceptions
from google.pubsub_v1 import types

from tests.support.pubsub_service import Service, fields_of
from tests.support.waiting import wait_for


def test_acknowledged_message_is_not_delivered_again(service: Service) -> None:
    """What is acknowledged is gone, however much time passes."""
    topic, subscription = service.pair()
    service.publish(topic, b"a", b"b")
    received = service.pull(subscription)
    service.ack(subscription, received[:1])
    service.expire(subscription, 10, 1)
    assert service.pull_data(subscription) == [b"b"]


def test_leased_message_is_with_one_subscriber_only(service: Service) -> None:
    """A message that is out is not delivered to anybody else."""
    topic, subscription = service.pair()
    service.publish(topic, b"a", b"b", b"c")
    assert service.pull_data(subscription, 2) == [b"a", b"b"]
    assert service.pull_data(subscription, 2) == [b"c"]
    assert service.pull_data(subscription) == []


def test_lease_ends_at_the_ack_deadline_and_the_message_comes_again(service: Service) -> None:
    """Without an acknowledgement a message is delivered anew after the deadline, not before."""
    topic, subscription = service.pair(ack_deadline_seconds=30)
    (message_id,) = service.publish(topic, b"x")
    service.pull(subscription)
    service.clock.advance(29.9)
    # Two sweeps of the housekeeping, so that an early end would show.
    before = time.monotonic()
    wait_for(lambda: time.monotonic() - before, lambda passed: passed > 0.12)
    assert service.pull(subscription) == []
    service.expire(subscription, 0.2, 1)
    (again,) = service.pull(subscription)
    assert again.message.message_id == message_id
    counters = service.emulator.counters(subscription)
    assert (counters.delivered, counters.redelivered, counters.expired) == (2, 1, 1)


def test_extended_lease_lasts_as_long_as_it_was_told(service: Service) -> None:
    """ModifyAckDeadline counts from its own time and replaces the first deadline."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    received = service.pull(subscription)
    service.clock.advance(9)
    service.modify(subscription, received, 60)
    service.clock.advance(59)
    service.modify(subscription, received, 20)
    service.expire(subscription, 20.1, 1)
    assert service.pull_data(subscription) == [b"x"]


def test_nacked_message_comes_again_at_once(service: Service) -> None:
    """A deadline of 0 gives the message back without any time passing."""
    topic, subscription = service.pair()
    service.publish(topic, b"x", b"y")
    received = service.pull(subscription)
    service.nack(subscription, received[:1])
    assert service.pull_data(subscription) == [b"x"]
    counters = service.emulator.counters(subscription)
    assert (counters.nacked, counters.outstanding, counters.unacked) == (1, 2, 2)


def test_late_acknowledgement_still_counts(service: Service) -> None:
    """Without exactly-once delivery an expired ack id acknowledges the message."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    received = service.pull(subscription)
    service.expire(subscription, 11, 1)
    service.ack(subscription, received)
    assert service.pull(subscription) == []
    assert service.emulator.counters(subscription).unacked == 0


def test_acknowledging_twice_is_no_error(service: Service) -> None:
    """A repeated acknowledgement succeeds and counts once."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    received = service.pull(subscription)
    service.ack(subscription, received + received)
    service.ack(subscription, received)
    assert service.emulator.counters(subscription).acked == 1


def test_stale_extension_changes_nothing(service: Service) -> None:
    """An ack id of an earlier delivery neither extends nor ends the current lease."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    old = service.pull(subscription)
    service.nack(subscription, old)
    service.pull(subscription)
    service.modify(subscription, old, 600)
    service.nack(subscription, old)
    assert service.pull(subscription) == []
    service.expire(subscription, 10.1, 1)
    assert service.pull_data(subscription) == [b"x"]


def test_pull_takes_at_most_what_was_asked_for(service: Service) -> None:
    """max_messages bounds a response, and 1000 bounds it always."""
    topic, subscription = service.pair()
    for _ in range(3):
        service.publish(topic, *[b"x"] * 500)
    assert len(service.pull(subscription, 7)) == 7
    assert len(service.pull(subscription, 5000)) == 1000
    assert len(service.pull(subscription, 5000)) == 493


def test_pull_waits_for_the_first_message(service: Service) -> None:
    """A pull on an empty subscription answers as soon as something is published."""
    topic, subscription = service.pair()
    found: list[types.ReceivedMessage] = []

    def pull() -> None:
        answer = service.subscriber.pull(subscription=subscription, max_messages=5)
        found.extend(answer.received_messages)

    puller = threading.Thread(target=pull)
    puller.start()
    wait_for(lambda: service.emulator.calls().get("Pull"))
    service.publish(topic, b"x")
    puller.join(4)
    assert [message.message.data for message in found] == [b"x"]


def test_pull_that_its_client_gave_up_takes_nothing(service: Service) -> None:
    """A message published after a pull's client deadline is ready for the next pull."""
    topic, subscription = service.pair()
    with pytest.raises(exceptions.DeadlineExceeded):
        service.subscriber.pull(subscription=subscription, max_messages=5, timeout=0.2, retry=None)
    service.publish(topic, b"x")
    assert service.pull_data(subscription) == [b"x"]


def test_waiting_pull_fails_when_its_subscription_is_deleted(service: Service) -> None:
    """A pull does not go on to a new subscription of the same name."""
    topic, subscription = service.pair()
    errors: list[Exception] = []

    def pull() -> None:
        try:
            service.subscriber.pull(subscription=subscription, max_messages=5)
        except exceptions.GoogleAPICallError as exc:
            errors.append(exc)

    puller = threading.Thread(target=pull)
    puller.start()
    wait_for(lambda: service.emulator.calls().get("Pull"))
    service.subscriber.delete_subscription(subscription=subscription)
    service.subscription(topic)
    puller.join(4)
    assert [type(error) for error in errors] == [exceptions.NotFound]


@pytest.mark.parametrize("most", [0, -1])
def test_pull_of_no_messages_is_refused(service: Service, most: int) -> None:
    """max_messages has to be positive."""
    _, subscription = service.pair()
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.pull(subscription, most)
    assert fields_of(caught.value) == ["max_messages"]


@pytest.mark.parametrize("seconds", [-1, 601])
def test_deadline_out_of_bounds_is_refused(service: Service, seconds: int) -> None:
    """A deadline is 0 to 600 seconds."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.modify(subscription, service.pull(subscription), seconds)
    assert fields_of(caught.value) == ["ack_deadline_seconds"]


@pytest.mark.parametrize("ack_id", ["nonsense", "", "\u00e9" * 94, "f" * 188, "P" * 188])
def test_ack_id_that_never_was_is_refused(service: Service, ack_id: str) -> None:
    """What is no ack id of the subscription is INVALID_ARGUMENT."""
    _, subscription = service.pair()
    for call in (
        lambda: service.subscriber.acknowledge(subscription=subscription, ack_ids=[ack_id]),
        lambda: service.subscriber.modify_ack_deadline(
            subscription=subscription, ack_ids=[ack_id], ack_deadline_seconds=10
        ),
    ):
        with pytest.raises(exceptions.InvalidArgument, match="invalid ack ID") as caught:
            call()
        assert fields_of(caught.value) == ["ack_ids"]


def test_ack_id_of_another_subscription_is_refused(service: Service) -> None:
    """An ack id is good for its own subscription only."""
    topic, subscription = service.pair()
    other = service.subscription(topic, "other")
    service.publish(topic, b"x")
    with pytest.raises(exceptions.InvalidArgument):
        service.ack(other, service.pull(subscription))
    assert service.emulator.counters(other).acked == 0


def test_request_without_ack_ids_is_refused(service: Service) -> None:
    """An acknowledgement of nothing is INVALID_ARGUMENT."""
    _, subscription = service.pair()
    for call in (lambda: service.ack(subscription, []), lambda: service.nack(subscription, [])):
        with pytest.raises(exceptions.InvalidArgument) as caught:
            call()
        assert fields_of(caught.value) == ["ack_ids"]


def test_ack_request_over_512_kib_is_refused(service: Service) -> None:
    """524,288 bytes bound a request: about 2,700 ack ids fit, 2,800 do not."""
    topic, subscription = service.pair()
    for _ in range(3):
        service.publish(topic, *[b"x"] * 1000)
    received = service.pull_some(subscription, 2800)
    for call in (service.ack, service.nack):
        with pytest.raises(exceptions.InvalidArgument, match=r"exceeds the limit: 524288 bytes"):
            call(subscription, received)
    service.ack(subscription, received[:2700])
    assert service.emulator.counters(subscription).acked == 2700
