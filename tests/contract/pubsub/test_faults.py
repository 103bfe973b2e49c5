"""Faults that the emulator commits on request: each kind, by method, count and probability."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1

from penstock.testing import Fault
from tests.support.pubsub_service import Service
from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("UNAVAILABLE", exceptions.ServiceUnavailable),
        ("RESOURCE_EXHAUSTED", exceptions.ResourceExhausted),
        ("PERMISSION_DENIED", exceptions.PermissionDenied),
        ("INTERNAL", exceptions.InternalServerError),
    ],
)
def test_call_fails_with_the_code_that_was_asked_for(
    service: Service, code: str, error: type[Exception]
) -> None:
    """An error fault fails its method with its code and message, before any work is done."""
    topic = service.topic()
    service.emulator.inject(Fault(kind="error", method="Publish", code=code, message="told to"))
    with pytest.raises(error, match="told to"):
        service.publish(topic, b"x")
    assert service.emulator.topic_counters(topic).published == 0
    service.publisher.get_topic(topic=topic)


def test_fault_ends_after_its_count(service: Service) -> None:
    """A fault with a count strikes so often, then calls work again."""
    topic = service.topic()
    service.emulator.inject(Fault(kind="error", method="Publish", count=3))
    failures = 0
    for _ in range(10):
        try:
            service.publish(topic, b"x")
        except exceptions.ServiceUnavailable:
            failures += 1
    assert failures == 3
    assert service.emulator.faults_struck() == {"error": 3}
    assert service.emulator.topic_counters(topic).published == 7
    assert service.emulator.calls()["Publish"] == 10


def test_fault_strikes_with_its_probability(service: Service) -> None:
    """A fault with a probability strikes some calls and spares others."""
    topic = service.topic()
    service.emulator.inject(Fault(kind="error", method="Publish", probability=0.5))
    outcomes = set()
    for _ in range(60):
        try:
            service.publish(topic, b"x")
            outcomes.add("stored")
        except exceptions.ServiceUnavailable:
            outcomes.add("failed")
    assert outcomes == {"stored", "failed"}
    assert 5 < service.emulator.faults_struck()["error"] < 55


def test_fault_without_a_method_strikes_all(service: Service) -> None:
    """The method * stands for every method of the API, but not for the admin service."""
    topic = service.topic()
    service.emulator.inject(Fault(kind="error"))
    with pytest.raises(exceptions.ServiceUnavailable):
        service.publish(topic, b"x")
    with pytest.raises(exceptions.ServiceUnavailable):
        service.publisher.get_topic(topic=topic, retry=None)
    service.emulator.clear_faults()
    service.publish(topic, b"x")


def test_cleared_faults_strike_no_more(service: Service) -> None:
    """clear_faults takes all faults back, whatever was left of their counts."""
    topic = service.topic()
    service.emulator.inject(Fault(kind="error", method="Publish", count=100))
    service.emulator.inject(Fault(kind="latency", method="Publish", seconds=100))
    service.emulator.clear_faults()
    service.publish(topic, b"x")
    assert service.emulator.faults_struck() == {}


def test_official_publisher_rides_out_a_spell_of_errors(service: Service) -> None:
    """The publisher client retries UNAVAILABLE by itself, and the message is stored once."""
    topic, subscription = service.pair()
    service.emulator.inject(Fault(kind="error", method="Publish", count=2))
    assert service.publisher.publish(topic, b"x").result(timeout=30)
    assert service.pull_data(subscription) == [b"x"]


def test_latency_delays_the_call_and_nobody_else(service: Service) -> None:
    """A latency fault holds one method up, while others are served."""
    topic, subscription = service.pair()
    service.emulator.inject(Fault(kind="latency", method="Publish", seconds=0.4, count=1))
    began = time.monotonic()
    future = service.publisher.publish(topic, b"x")
    wait_for(lambda: service.emulator.faults_struck().get("latency"))
    assert service.pull(subscription) == []
    assert time.monotonic() - began < 0.4
    future.result(timeout=30)
    assert time.monotonic() - began >= 0.4


def test_lost_publish_response_stores_but_fails(service: Service) -> None:
    """The caller sees an error, the message is stored: a retry stores it a second time."""
    topic, subscription = service.pair()
    service.emulator.inject(Fault(kind="lose_response", method="Publish", count=1))
    with pytest.raises(exceptions.ServiceUnavailable):
        service.publish(topic, b"x")
    service.publish(topic, b"x")
    assert service.pull_data(subscription) == [b"x", b"x"]


def test_official_publisher_repeats_what_it_got_no_answer_for(service: Service) -> None:
    """A lost response makes the publisher client store the message twice, with one id told."""
    topic, subscription = service.pair()
    service.emulator.inject(Fault(kind="lose_response", method="Publish", count=1))
    told = service.publisher.publish(topic, b"x").result(timeout=30)
    ids = [message.message.message_id for message in service.pull(subscription)]
    assert len(ids) == 2
    assert ids[1] == told


def test_lost_pull_response_leaves_the_messages_leased(service: Service) -> None:
    """Messages whose response was lost come again when their leases end."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    service.emulator.inject(Fault(kind="lose_response", method="Pull", count=1))
    with pytest.raises(exceptions.ServiceUnavailable):
        service.subscriber.pull(subscription=subscription, max_messages=1, retry=None)
    assert service.pull(subscription) == []
    service.expire(subscription, 10.1, 1)
    assert service.pull_data(subscription) == [b"x"]


def test_lost_acknowledgement_is_confirmed_but_not_done(service: Service) -> None:
    """The caller sees success, and the message comes again after its lease."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    service.emulator.inject(Fault(kind="lose_ack", method="Acknowledge", count=1))
    service.ack(subscription, service.pull(subscription))
    assert service.emulator.counters(subscription).acked == 0
    service.expire(subscription, 10.1, 1)
    received = service.pull(subscription)
    assert [message.message.data for message in received] == [b"x"]
    service.ack(subscription, received)
    assert service.emulator.counters(subscription).acked == 1


def test_acknowledgement_inside_a_stream_can_be_lost(service: Service) -> None:
    """A lose_ack fault of StreamingPull drops the acks that a stream sends."""
    topic, subscription = service.pair()
    service.publish(topic, b"x", b"y")
    stream = service.stream(subscription)
    received = stream.wait_received(2)
    service.emulator.inject(Fault(kind="lose_ack", method="StreamingPull", count=1))
    stream.ack(received[:1])
    wait_for(lambda: service.emulator.faults_struck().get("lose_ack"))
    stream.ack(received[1:])
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 1)
    service.expire(subscription, 10.1, 1)
    assert stream.wait_received(3)[2].message.data == b"x"


def test_lost_acknowledgement_response_does_the_work(service: Service) -> None:
    """With lose_response the acknowledgement counts although the caller sees an error."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    service.emulator.inject(Fault(kind="lose_response", method="Acknowledge", count=1))
    with pytest.raises(exceptions.ServiceUnavailable):
        service.ack(subscription, service.pull(subscription))
    assert service.emulator.counters(subscription).acked == 1


@pytest.mark.parametrize("method", ["Pull", "StreamingPull"])
def test_duplicate_delivery_has_each_message_twice(service: Service, method: str) -> None:
    """A response contains its messages twice, under the same ack ids; one ack settles both."""
    topic, subscription = service.pair()
    service.publish(topic, b"a", b"b")
    other = "Pull" if method == "StreamingPull" else "StreamingPull"
    service.emulator.inject(Fault(kind="duplicate", method=other))
    service.emulator.inject(Fault(kind="duplicate", method=method, count=1))
    if method == "Pull":
        received = service.pull(subscription)
    else:
        received = service.stream(subscription).wait_received(4)
    assert [message.message.data for message in received] == [b"a", b"b", b"a", b"b"]
    assert [m.ack_id for m in received[:2]] == [m.ack_id for m in received[2:]]
    service.ack(subscription, received)
    counters = service.emulator.counters(subscription)
    assert (counters.acked, counters.delivered, counters.unacked) == (2, 2, 0)


def test_duplicates_of_a_large_backlog_fit_the_clients_channel(service: Service) -> None:
    """Also a doubled response stays under the 4 MiB of the official client."""
    topic, subscription = service.pair()
    for _ in range(6):
        service.publish(topic, b"x" * 2**20)
    service.emulator.inject(Fault(kind="duplicate"))
    service.stream(subscription).wait_received(12)


def test_busy_stream_is_cut(service: Service) -> None:
    """A cut stream ends with UNAVAILABLE; what it was about to send stays leased."""
    topic, subscription = service.pair()
    stream = service.stream(subscription)
    wait_for(lambda: stream.responses)
    service.publish(topic, b"x")
    stream.wait_received(1)
    service.emulator.inject(Fault(kind="cut", method="StreamingPull", count=1))
    error = stream.wait_error()
    assert isinstance(error, exceptions.ServiceUnavailable)
    assert service.emulator.counters(subscription).outstanding == 1
    again = service.stream(subscription)
    service.publish(topic, b"y")
    assert again.wait_received(1)[0].message.data == b"y"
    service.expire(subscription, 10.1, 2)
    again.wait_received(3)


def test_idle_stream_is_cut(service: Service) -> None:
    """A stream without any traffic sees the fault too, as does each of several."""
    _, subscription = service.pair()
    streams = [service.stream(subscription) for _ in range(3)]
    for stream in streams:
        wait_for(lambda stream=stream: stream.responses)
    service.emulator.inject(Fault(kind="cut", count=2))
    wait_for(lambda: [stream.is_open for stream in streams], lambda opened: opened.count(True) == 1)
    assert service.emulator.faults_struck() == {"cut": 2}


def test_stream_is_cut_at_the_age_that_was_given(service: Service) -> None:
    """A cut with seconds ends streams when they are that old, by the emulator's clock."""
    topic, subscription = service.pair()
    service.emulator.inject(Fault(kind="cut", seconds=30.0))
    stream = service.stream(subscription, stream_ack_deadline_seconds=600)
    wait_for(lambda: stream.responses)
    service.clock.advance(29)
    service.publish(topic, b"x")
    stream.wait_received(1)
    assert stream.is_open
    service.clock.advance(2)
    assert isinstance(stream.wait_error(), exceptions.ServiceUnavailable)


def test_official_subscriber_survives_cut_streams(service: Service) -> None:
    """The subscriber client opens a new stream after each cut, and no message is lost."""
    topic, subscription = service.pair()
    seen: list[bytes] = []

    def collect(message: pubsub_v1.subscriber.message.Message) -> None:
        seen.append(message.data)
        message.ack()

    future = service.subscriber.subscribe(subscription, callback=collect)
    for n in range(5):
        service.publish(topic, b"%d" % n)
        wait_for(
            lambda: service.emulator.counters(subscription),
            lambda counted, n=n: counted.acked == n + 1,
        )
        service.emulator.inject(Fault(kind="cut", count=1))
        wait_for(
            lambda: service.emulator.faults_struck().get("cut"), lambda struck, n=n: struck == n + 1
        )
    future.cancel()
    future.result(timeout=20)
    assert seen == [b"%d" % n for n in range(5)]
    assert service.emulator.calls()["StreamingPull"] >= 5


def test_failed_open_of_a_stream_is_retried_by_the_client(service: Service) -> None:
    """UNAVAILABLE on opening a stream is ridden out by the subscriber client."""
    topic, subscription = service.pair()
    service.emulator.inject(Fault(kind="error", method="StreamingPull", count=2))
    service.publish(topic, b"x")
    seen: list[bytes] = []

    def collect(message: pubsub_v1.subscriber.message.Message) -> None:
        seen.append(message.data)
        message.ack()

    future = service.subscriber.subscribe(subscription, callback=collect)
    wait_for(lambda: service.emulator.counters(subscription), lambda found: found.acked == 1)
    future.cancel()
    future.result(timeout=20)
    assert seen == [b"x"]


def test_several_faults_are_in_force_together(service: Service) -> None:
    """Faults of different kinds and methods do not disturb each other."""
    topic, subscription = service.pair()
    service.emulator.inject(Fault(kind="error", method="Publish", count=1))
    service.emulator.inject(Fault(kind="error", method="Publish", code="ABORTED", count=1))
    service.emulator.inject(Fault(kind="duplicate", method="Pull", count=1))
    with pytest.raises(exceptions.ServiceUnavailable):
        service.publish(topic, b"x")
    with pytest.raises(exceptions.Aborted):
        service.publish(topic, b"x")
    service.publish(topic, b"x")
    assert service.pull_data(subscription) == [b"x", b"x"]
    assert service.emulator.faults_struck() == {"error": 2, "duplicate": 1}


def test_fault_of_an_unknown_method_is_refused(service: Service) -> None:
    """A misspelt method is an error and not a fault that never strikes."""
    with pytest.raises(grpc.RpcError) as caught:
        service.emulator.inject(Fault(kind="error", method="Pubish"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_another_process_injects_over_the_wire(service: Service) -> None:
    """A program that knows only the address can inject, count, and clear."""
    topic, subscription = service.pair()
    program = """
        import os
        from penstock.testing import Fault, PubSubEmulator

        emulator = PubSubEmulator(os.environ["PUBSUB_EMULATOR_HOST"])
        emulator.inject(Fault(kind="lose_response", method="Publish", count=1))
        emulator.inject(Fault(kind="error", method="Pull", code="RESOURCE_EXHAUSTED", count=1))
        print(emulator.counters("projects/contract/subscriptions/reader").published)
        emulator.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"
    with pytest.raises(exceptions.ServiceUnavailable):
        service.publish(topic, b"x")
    with pytest.raises(exceptions.ResourceExhausted):
        service.subscriber.pull(subscription=subscription, max_messages=1, retry=None)
    assert service.pull_data(subscription) == [b"x"]
