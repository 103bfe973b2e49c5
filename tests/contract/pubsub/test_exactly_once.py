"""Exactly-once delivery: confirmed acknowledgements, and ids that are refused one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.subscriber.message import Message
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

from penstock.testing import Fault
from tests.support.pubsub_service import Service, failures_of
from tests.support.waiting import wait_for

INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"


@pytest.fixture
def pair(service: Service) -> tuple[str, str]:
    return service.pair(enable_exactly_once_delivery=True, ack_deadline_seconds=20)


def refused(call: Callable[[], object]) -> dict[str, str]:
    """Make a call that has to fail; give the reason for each ack id."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        call()
    return failures_of(caught.value)


def all_invalid(received: list[types.ReceivedMessage]) -> dict[str, str]:
    return {message.ack_id: INVALID for message in received}


class Receiver:
    """Runs the official subscriber and settles each message with its response."""

    def __init__(self, service: Service, subscription: str, settle: str = "ack") -> None:
        self.futures: list[Future[AcknowledgeStatus]] = []
        self._settle = f"{settle}_with_response"
        self._lock = threading.Lock()
        self._running = service.subscriber.subscribe(subscription, callback=self._handle)

    def _handle(self, message: Message) -> None:
        future = getattr(message, self._settle)()
        with self._lock:
            self.futures.append(future)

    def wait_results(self, count: int) -> list[AcknowledgeStatus]:
        wait_for(lambda: len(self.futures), lambda seen: seen >= count)
        return [future.result(timeout=30) for future in self.futures[:count]]

    def stop(self) -> None:
        self._running.cancel()
        self._running.result(timeout=20)


def test_acknowledgements_are_confirmed_to_the_client(
    service: Service, pair: tuple[str, str]
) -> None:
    """ack_with_response resolves to SUCCESS, and nothing is delivered twice."""
    topic, subscription = pair
    service.publish(topic, *[b"%d" % n for n in range(200)])
    receiver = Receiver(service, subscription)
    assert receiver.wait_results(200) == [AcknowledgeStatus.SUCCESS] * 200
    receiver.stop()
    counters = service.emulator.counters(subscription)
    assert (counters.acked, counters.delivered, counters.unacked) == (200, 200, 0)


def test_late_acknowledgement_fails_at_the_client(service: Service, pair: tuple[str, str]) -> None:
    """ack_with_response of a message whose lease has ended resolves to INVALID_ACK_ID."""
    topic, subscription = pair
    service.publish(topic, b"x")
    held: list[Message] = []
    future = service.subscriber.subscribe(subscription, callback=held.append)
    wait_for(lambda: held)
    service.clock.advance(700)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.expired == 1)
    with pytest.raises(AcknowledgeError) as caught:
        held[0].ack_with_response().result(timeout=30)
    assert caught.value.error_code is AcknowledgeStatus.INVALID_ACK_ID
    # The message came again; the newer id is good.
    wait_for(lambda: len(held), lambda seen: seen == 2)
    assert held[1].ack_with_response().result(timeout=30) is AcknowledgeStatus.SUCCESS
    future.cancel()
    future.result(timeout=20)


def test_transient_failures_are_retried_by_the_client(
    service: Service, pair: tuple[str, str]
) -> None:
    """Ids that fail for a time are acknowledged in the end, and the caller sees SUCCESS."""
    topic, subscription = pair
    service.emulator.inject(Fault(kind="fail_ack_ids", method="Acknowledge", count=1))
    service.publish(topic, b"x")
    receiver = Receiver(service, subscription)
    assert receiver.wait_results(1) == [AcknowledgeStatus.SUCCESS]
    receiver.stop()
    assert service.emulator.faults_struck() == {"fail_ack_ids": 1}
    assert service.emulator.calls()["Acknowledge"] == 2
    assert service.emulator.counters(subscription).acked == 1


def test_permanent_failure_reaches_the_caller(service: Service, pair: tuple[str, str]) -> None:
    """An injected permanent reason ends ack_with_response with an error."""
    topic, subscription = pair
    service.emulator.inject(
        Fault(kind="fail_ack_ids", method="Acknowledge", code="PERMANENT_FAILURE_OTHER")
    )
    service.publish(topic, b"x")
    receiver = Receiver(service, subscription)
    with pytest.raises(AcknowledgeError) as caught:
        receiver.wait_results(1)
    assert caught.value.error_code is AcknowledgeStatus.OTHER
    receiver.stop()
    assert service.emulator.counters(subscription).acked == 0


def test_nack_is_confirmed_and_redelivers(service: Service, pair: tuple[str, str]) -> None:
    """nack_with_response resolves to SUCCESS, and the message comes again."""
    topic, subscription = pair
    service.publish(topic, b"x")
    receiver = Receiver(service, subscription, "nack")
    assert receiver.wait_results(2) == [AcknowledgeStatus.SUCCESS] * 2
    receiver.stop()


def test_expired_id_is_refused(service: Service, pair: tuple[str, str]) -> None:
    """After the deadline neither acknowledging nor extending works, even before redelivery."""
    topic, subscription = pair
    service.publish(topic, b"x")
    received = service.pull(subscription)
    service.clock.advance(20)
    assert refused(lambda: service.ack(subscription, received)) == all_invalid(received)
    assert refused(lambda: service.modify(subscription, received, 60)) == all_invalid(received)
    assert [m.message.data for m in service.pull_some(subscription, 1)] == [b"x"]


def test_only_the_latest_id_is_good(service: Service, pair: tuple[str, str]) -> None:
    """The id of an earlier delivery is refused, also after the message was acknowledged."""
    topic, subscription = pair
    service.publish(topic, b"x")
    old = service.pull(subscription)
    service.nack(subscription, old)
    new = service.pull(subscription)
    assert refused(lambda: service.ack(subscription, old)) == all_invalid(old)
    assert refused(lambda: service.nack(subscription, old)) == all_invalid(old)
    service.ack(subscription, new)
    assert refused(lambda: service.ack(subscription, old)) == all_invalid(old)
    assert service.emulator.counters(subscription).acked == 1


def test_stale_id_is_refused_long_after_the_acknowledgement(
    service: Service, pair: tuple[str, str]
) -> None:
    """Whether an old id is refused does not depend on the housekeeping."""
    topic, subscription = pair
    service.publish(topic, b"once", b"twice")
    old = service.pull(subscription)
    service.nack(subscription, old[1:])
    new = service.pull(subscription)
    service.ack(subscription, old[:1] + new)
    wait_for(lambda: service.emulator.topic_counters(topic), lambda seen: seen.stored == 0)
    assert refused(lambda: service.ack(subscription, old[1:])) == all_invalid(old[1:])
    service.ack(subscription, old[:1] + new)


def test_repeated_acknowledgement_succeeds(service: Service, pair: tuple[str, str]) -> None:
    """A client that lost the answer may ask again with the same id."""
    topic, subscription = pair
    service.publish(topic, b"x")
    received = service.pull(subscription)
    service.ack(subscription, received)
    service.ack(subscription, received)
    assert service.emulator.counters(subscription).acked == 1


def test_failures_are_per_id(service: Service, pair: tuple[str, str]) -> None:
    """Of a mixed request the good ids count, and the error names the others and only them."""
    topic, subscription = pair
    service.publish(topic, b"a", b"b", b"c")
    received = service.pull(subscription)
    service.nack(subscription, received[1:2])
    bogus = types.ReceivedMessage(ack_id="bogus")
    failures = refused(lambda: service.ack(subscription, [*received, bogus]))
    assert failures == all_invalid([received[1], bogus])
    assert service.emulator.counters(subscription).acked == 2
    assert service.pull_data(subscription) == [b"b"]


def test_error_of_many_ids_is_one_that_the_client_can_read(
    service: Service, pair: tuple[str, str]
) -> None:
    """However many ids fail, the error's details fit what a default channel takes."""
    topic, subscription = pair
    service.publish(topic, *[b"x"] * 1000)
    received = service.pull(subscription, 1000)
    service.nack(subscription, received)
    failures = refused(lambda: service.ack(subscription, received))
    assert 20 <= len(failures) < 1000
    assert set(failures.items()) <= set(all_invalid(received).items())


def test_all_futures_resolve_when_many_ids_fail(service: Service, pair: tuple[str, str]) -> None:
    """The official client reports a failure for each of 300 late acknowledgements."""
    topic, subscription = pair
    service.publish(topic, *[b"x"] * 300)
    held: list[Message] = []
    future = service.subscriber.subscribe(subscription, callback=held.append)
    wait_for(lambda: len(held), lambda seen: seen == 300)
    service.clock.advance(700)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.expired == 300)
    outcomes = [message.ack_with_response() for message in held[:300]]
    for outcome in outcomes:
        with pytest.raises(AcknowledgeError):
            outcome.result(timeout=30)
    future.cancel()
    future.result(timeout=20)


def test_stream_confirms_acknowledgements_and_extensions(
    service: Service, pair: tuple[str, str]
) -> None:
    """A stream's own acks and deadlines are answered with confirmations, good and bad."""
    topic, subscription = pair
    service.publish(topic, b"a", b"b")
    stream = service.stream(subscription)
    good, late = stream.wait_received(2)
    service.nack(subscription, [late])
    stream.wait_received(3)
    stream.send(
        ack_ids=[good.ack_id, late.ack_id],
        modify_deadline_ack_ids=[good.ack_id, late.ack_id],
        modify_deadline_seconds=[30, 30],
    )
    acked = wait_for(lambda: [r.acknowledge_confirmation for r in stream.responses if _acks(r)])[0]
    assert list(acked.ack_ids) == [good.ack_id]
    assert list(acked.invalid_ack_ids) == [late.ack_id]
    modified = wait_for(
        lambda: [r.modify_ack_deadline_confirmation for r in stream.responses if _modifies(r)]
    )[0]
    assert list(modified.ack_ids) == []
    assert list(modified.invalid_ack_ids) == [good.ack_id, late.ack_id]


def _acks(response: types.StreamingPullResponse) -> bool:
    return "acknowledge_confirmation" in response


def _modifies(response: types.StreamingPullResponse) -> bool:
    return "modify_ack_deadline_confirmation" in response


def test_stream_tells_of_temporary_failures(service: Service, pair: tuple[str, str]) -> None:
    """An injected transient failure is confirmed as temporary, and the message stays."""
    topic, subscription = pair
    service.publish(topic, b"x")
    stream = service.stream(subscription)
    received = stream.wait_received(1)
    service.emulator.inject(Fault(kind="fail_ack_ids", method="StreamingPull", count=1))
    stream.ack(received)
    confirmation = wait_for(
        lambda: [r.acknowledge_confirmation for r in stream.responses if _acks(r)]
    )[0]
    assert list(confirmation.temporary_failed_ack_ids) == [received[0].ack_id]
    assert service.emulator.counters(subscription).acked == 0
    stream.ack(received)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 1)


def test_ordered_messages_have_to_be_acknowledged_in_order(service: Service) -> None:
    """With ordering, an ack that skips an earlier message of its key fails for a time."""
    topic, subscription = service.pair(
        enable_exactly_once_delivery=True, enable_message_ordering=True
    )
    service.publish(topic, *[{"data": b"%d" % n, "ordering_key": "k"} for n in range(3)])
    first, second, third = service.pull(subscription)
    failures = refused(lambda: service.ack(subscription, [second]))
    assert failures == {second.ack_id: "TRANSIENT_FAILURE_UNORDERED_ACK_ID"}
    service.ack(subscription, [second, first])
    stream = service.stream(subscription)
    service.publish(topic, {"data": b"3", "ordering_key": "other"}, {"data": b"x"})
    stream.wait_received(2)
    service.publish(topic, {"data": b"4", "ordering_key": "other"})
    received = stream.wait_received(3)
    stream.ack(received[2:])
    confirmation = wait_for(
        lambda: [r.acknowledge_confirmation for r in stream.responses if _acks(r)]
    )[0]
    assert list(confirmation.unordered_ack_ids) == [received[2].ack_id]
    service.ack(subscription, [third, *received])
    assert service.emulator.counters(subscription).unacked == 0


def test_acknowledged_message_is_not_repeated_with_its_key(service: Service) -> None:
    """Exactly-once delivery holds on an ordered subscription too."""
    topic, subscription = service.pair(
        enable_exactly_once_delivery=True, enable_message_ordering=True
    )
    service.publish(topic, *[{"data": b"%d" % n, "ordering_key": "k"} for n in range(3)])
    received = service.pull(subscription)
    service.ack(subscription, received[:1])
    service.nack(subscription, received[1:2])
    assert service.pull_data(subscription) == [b"1", b"2"]


def test_turning_it_on_applies_to_messages_that_are_out(service: Service) -> None:
    """From the update on expired ids are refused, and stay refused until it is turned off."""
    topic, subscription = service.pair()
    service.publish(topic, b"a", b"b", b"c")
    received = service.pull(subscription)
    mask = field_mask_pb2.FieldMask(paths=["enable_exactly_once_delivery"])

    def turn(*, on: bool) -> None:
        settings = {"name": subscription, "enable_exactly_once_delivery": on}
        service.subscriber.update_subscription(
            request={"subscription": settings, "update_mask": mask}
        )

    turn(on=True)
    service.ack(subscription, received[:1])
    service.expire(subscription, 11, 2)
    assert refused(lambda: service.ack(subscription, received[1:])) == all_invalid(received[1:])
    turn(on=False)
    service.ack(subscription, received[1:])
    assert service.emulator.counters(subscription).unacked == 0


def test_id_from_before_a_seek_is_refused(service: Service) -> None:
    """A seek makes every delivery new: an older id acknowledges nothing of it."""
    topic, subscription = service.pair(
        enable_exactly_once_delivery=True, retain_acked_messages=True
    )
    service.publish(topic, b"x")
    old = service.pull(subscription)
    service.ack(subscription, old)
    service.subscriber.seek(
        request={"subscription": subscription, "time": {"seconds": 1_600_000_000}}
    )
    new = service.pull(subscription)
    assert [message.message.data for message in new] == [b"x"]
    assert refused(lambda: service.ack(subscription, old)) == all_invalid(old)
    service.ack(subscription, new)
