"""StreamingPull: through the client's futures, and as the bare method."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.message import Message
from google.protobuf import field_mask_pb2

from tests.support.pubsub_service import Service, fields_of
from tests.support.waiting import wait_for


class Collector:
    """A callback that keeps what it gets, and acknowledges it if told to."""

    def __init__(self, *, acks: bool = True) -> None:
        self.messages: list[Message] = []
        self._acks = acks
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.messages.append(message)
        if self._acks:
            message.ack()

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.messages]


def test_subscriber_future_receives_and_acknowledges(service: Service) -> None:
    """subscribe() delivers every message to the callback, and its acks reach the service."""
    topic, subscription = service.pair()
    service.publish(topic, *[b"%d" % n for n in range(300)])
    collector = Collector()
    future = service.subscriber.subscribe(subscription, callback=collector)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 300)
    service.publish(topic, *[b"%d" % n for n in range(300, 600)])
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 600)
    future.cancel()
    future.result(timeout=20)
    assert sorted(collector.data, key=int) == [b"%d" % n for n in range(600)]
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.streams == 0)
    counters = service.emulator.counters(subscription)
    assert (counters.delivered, counters.redelivered, counters.unacked) == (600, 0, 0)


def test_subscriber_future_keeps_its_flow_control_limit(service: Service) -> None:
    """With max_messages=10 never more than 10 messages are out, and all are delivered."""
    topic, subscription = service.pair()
    service.publish(topic, *[b"%d" % n for n in range(60)])
    most = 0
    gate = threading.Semaphore(0)
    collector = Collector()

    def slow(message: Message) -> None:
        gate.acquire(timeout=20)
        collector(message)

    flow = pubsub_v1.types.FlowControl(max_messages=10)
    future = service.subscriber.subscribe(subscription, callback=slow, flow_control=flow)
    for done in range(60):
        expected = min(10, 60 - done)
        seen = wait_for(
            lambda: service.emulator.counters(subscription),
            lambda seen, expected=expected: seen.outstanding == expected,
        )
        most = max(most, seen.outstanding)
        gate.release()
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 60)
    future.cancel()
    future.result(timeout=20)
    assert most == 10
    assert len(collector.data) == 60


def test_cancelled_subscriber_gives_its_messages_back(service: Service) -> None:
    """What a cancelled subscriber had not handled goes to the next one."""
    topic, subscription = service.pair()
    service.publish(topic, *[b"%d" % n for n in range(50)])
    started = threading.Event()
    release = threading.Event()

    def stuck(message: Message) -> None:
        started.set()
        release.wait(20)

    future = service.subscriber.subscribe(subscription, callback=stuck)
    assert started.wait(10)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.outstanding == 50)
    future.cancel()
    release.set()
    future.result(timeout=20)
    # The client nacks what it holds in its queue; what was with callbacks ends with its lease.
    service.clock.advance(61)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.outstanding == 0)
    assert sorted(service.pull_data(subscription), key=int) == [b"%d" % n for n in range(50)]


def test_subscriber_future_ends_when_the_subscription_is_unknown(service: Service) -> None:
    """A subscription that does not exist ends the future with NOT_FOUND."""
    name = service.subscriber.subscription_path("contract", "none")
    future = service.subscriber.subscribe(name, callback=Collector())
    with pytest.raises(exceptions.NotFound):
        future.result(timeout=20)


def test_nack_in_a_callback_redelivers(service: Service) -> None:
    """A message that a callback refuses comes again through the same stream."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    seen: list[bytes] = []

    def refuse_once(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            message.nack()
        else:
            message.ack()

    future = service.subscriber.subscribe(subscription, callback=refuse_once)
    wait_for(lambda: service.emulator.counters(subscription), lambda found: found.acked == 1)
    future.cancel()
    future.result(timeout=20)
    assert seen == [b"x", b"x"]


def test_stream_tells_the_properties_of_its_subscription(service: Service) -> None:
    """The first response tells of ordering and exactly-once delivery, before any message."""
    topic, plain = service.pair()
    ordered = service.subscription(
        topic, "ordered", enable_message_ordering=True, enable_exactly_once_delivery=True
    )
    for name, expected in ((plain, False), (ordered, True)):
        stream = service.stream(name)
        (response,) = wait_for(lambda stream=stream: stream.responses)
        properties = response.subscription_properties
        assert properties.message_ordering_enabled is expected
        assert properties.exactly_once_delivery_enabled is expected


def test_change_of_a_subscription_reaches_an_open_stream(service: Service) -> None:
    """Turning exactly-once delivery on is told to idle streams."""
    _, subscription = service.pair()
    stream = service.stream(subscription)
    wait_for(lambda: stream.responses)
    mask = field_mask_pb2.FieldMask(paths=["enable_exactly_once_delivery"])
    service.subscriber.update_subscription(
        request={
            "subscription": {"name": subscription, "enable_exactly_once_delivery": True},
            "update_mask": mask,
        }
    )
    wait_for(
        lambda: stream.responses,
        lambda seen: seen[-1].subscription_properties.exactly_once_delivery_enabled,
    )


def test_stream_uses_its_own_deadline_and_can_change_it(service: Service) -> None:
    """Leases given on a stream last stream_ack_deadline_seconds, also after it was changed."""
    topic, subscription = service.pair(ack_deadline_seconds=10)
    stream = service.stream(subscription, stream_ack_deadline_seconds=40)
    service.publish(topic, b"first")
    first = stream.wait_received(1)
    service.clock.advance(39)
    stream.send(stream_ack_deadline_seconds=100)
    # An ack on the same stream shows that the request before it was handled.
    stream.ack(first)
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 1)
    service.publish(topic, b"second")
    stream.wait_received(2)
    service.clock.advance(99)
    service.publish(topic, b"third")
    stream.wait_received(3)
    assert service.emulator.counters(subscription).expired == 0
    service.expire(subscription, 1.1, 1)
    assert [m.message.data for m in stream.wait_received(4)][3] == b"second"


def test_acks_and_deadlines_travel_inside_the_stream(service: Service) -> None:
    """A stream's requests acknowledge, extend and nack."""
    topic, subscription = service.pair()
    service.publish(topic, b"ack", b"extend", b"nack")
    stream = service.stream(subscription)
    received = {message.message.data: message for message in stream.wait_received(3)}
    stream.ack([received[b"ack"]])
    stream.modify([received[b"extend"]], 500)
    stream.modify([received[b"nack"]], 0)
    assert stream.wait_received(4)[3].message.data == b"nack"
    counters = service.emulator.counters(subscription)
    assert (counters.acked, counters.nacked, counters.outstanding) == (1, 1, 2)
    # The redelivered one expires with the stream's deadline, the extended one does not.
    service.expire(subscription, 11, 1)
    assert stream.wait_received(5)[4].message.data == b"nack"


def test_unary_calls_settle_what_a_stream_delivered(service: Service) -> None:
    """Acknowledge and ModifyAckDeadline work on a stream's ack ids, and make room on it."""
    topic, subscription = service.pair()
    service.publish(topic, *[b"%d" % n for n in range(6)])
    stream = service.stream(subscription, max_outstanding_messages=2)
    service.ack(subscription, stream.wait_received(2))
    service.nack(subscription, stream.wait_received(4)[2:])
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.outstanding == 2)
    assert service.emulator.counters(subscription).acked == 2


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_outstanding_messages": 3}, 3),
        ({"max_outstanding_bytes": 2500}, 3),
        ({"max_outstanding_messages": 2, "max_outstanding_bytes": 10**6}, 2),
        ({"max_outstanding_bytes": 10}, 1),
        ({"max_outstanding_messages": 0, "max_outstanding_bytes": -1}, 10),
    ],
)
def test_server_keeps_the_streams_limits(
    service: Service, limits: dict[str, int], expected: int
) -> None:
    """No more is out on a stream than it asked for; one message over the bytes is allowed."""
    topic, subscription = service.pair()
    service.publish(topic, *[b"x" * 1000] * 10)
    stream = service.stream(subscription, **limits)
    stream.wait_received(expected)
    others = service.pull(subscription)
    assert len(others) == 10 - expected
    if others:
        service.nack(subscription, others)
    for settled in range(1, len(others) + 1):
        stream.ack(stream.received[settled - 1 : settled])
        stream.wait_received(expected + settled)


def test_limits_are_of_each_stream(service: Service) -> None:
    """Two streams with room for 5 each have 10 messages out together."""
    topic, subscription = service.pair()
    streams = [service.stream(subscription, max_outstanding_messages=5) for _ in range(2)]
    service.publish(topic, *[b"x"] * 50)
    for stream in streams:
        stream.wait_received(5)
    assert service.emulator.counters(subscription).outstanding == 10


def test_expired_lease_makes_room_on_its_stream(service: Service) -> None:
    """A message whose lease ended counts for the stream no more."""
    topic, subscription = service.pair()
    service.publish(topic, b"a", b"b")
    stream = service.stream(subscription, max_outstanding_messages=1)
    stream.wait_received(1)
    service.expire(subscription, 10.1, 1)
    stream.wait_received(2)
    counters = service.emulator.counters(subscription)
    assert (counters.outstanding, counters.unacked) == (1, 2)


@pytest.mark.parametrize(
    ("opening", "field"),
    [
        ({"subscription": ""}, "subscription"),
        ({"subscription": "reader"}, "subscription"),
        ({"stream_ack_deadline_seconds": 0}, "stream_ack_deadline_seconds"),
        ({"stream_ack_deadline_seconds": 9}, "stream_ack_deadline_seconds"),
        ({"stream_ack_deadline_seconds": 601}, "stream_ack_deadline_seconds"),
        ({"ack_ids": ["nonsense"]}, "ack_ids"),
    ],
)
def test_bad_first_request_ends_the_stream(
    service: Service, opening: dict[str, Any], field: str
) -> None:
    """A stream that does not begin as it should ends with INVALID_ARGUMENT."""
    _, subscription = service.pair()
    opening = {"subscription": subscription, **opening}
    stream = service.stream(opening.pop("subscription"), **opening)
    error = stream.wait_error()
    assert isinstance(error, exceptions.InvalidArgument)
    assert fields_of(error) == [field]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"subscription": "projects/contract/subscriptions/reader"}, "subscription"),
        ({"max_outstanding_messages": 5}, "max_outstanding_messages"),
        ({"max_outstanding_bytes": 5}, "max_outstanding_bytes"),
        ({"stream_ack_deadline_seconds": 5}, "stream_ack_deadline_seconds"),
        ({"ack_ids": ["nonsense"]}, "ack_ids"),
        ({"modify_deadline_ack_ids": ["a"]}, "modify_deadline_seconds"),
        ({"modify_deadline_seconds": [1]}, "modify_deadline_seconds"),
        (
            {"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [-1]},
            "ack_deadline_seconds",
        ),
    ],
)
def test_bad_later_request_ends_the_stream(
    service: Service, request_: dict[str, Any], field: str
) -> None:
    """A stream's later requests may not name a subscription or limits, nor break the rules."""
    _, subscription = service.pair()
    stream = service.stream(subscription)
    wait_for(lambda: stream.responses)
    stream.send(**request_)
    error = stream.wait_error()
    assert isinstance(error, exceptions.InvalidArgument)
    assert fields_of(error) == [field]
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.streams == 0)


def test_request_over_512_kib_ends_the_stream(service: Service) -> None:
    """The limit of an acknowledgement request holds inside a stream too."""
    _, subscription = service.pair()
    stream = service.stream(subscription)
    stream.send(ack_ids=["x" * 1000] * 530)
    assert isinstance(stream.wait_error(), exceptions.InvalidArgument)


def test_unknown_subscription_ends_the_stream(service: Service) -> None:
    """A stream on nothing ends with NOT_FOUND."""
    stream = service.stream("projects/contract/subscriptions/none")
    assert isinstance(stream.wait_error(), exceptions.NotFound)


def test_stream_ends_when_its_subscription_is_deleted(service: Service) -> None:
    """An idle stream ends with NOT_FOUND, also when the name is used again at once."""
    topic, subscription = service.pair()
    stream = service.stream(subscription)
    wait_for(lambda: stream.responses)
    service.subscriber.delete_subscription(subscription=subscription)
    service.subscription(topic)
    assert isinstance(stream.wait_error(), exceptions.NotFound)
    service.publish(topic, b"x")
    assert service.pull_data(subscription) == [b"x"]


def test_leases_of_a_closed_stream_run_on_until_they_end(service: Service) -> None:
    """What a stream had when it broke comes again after its deadline, and not before."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    stream = service.stream(subscription, stream_ack_deadline_seconds=30)
    received = stream.wait_received(1)
    stream.close()
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.streams == 0)
    assert service.pull(subscription) == []
    service.modify(subscription, received, 50)
    service.expire(subscription, 50.1, 1)
    assert service.pull_data(subscription) == [b"x"]


def test_a_client_that_closes_its_sending_side_ends_the_stream(service: Service) -> None:
    """In order: what was sent is received, the status is OK, and later messages are not leased."""
    topic, subscription = service.pair()
    service.publish(topic, b"x")
    stream = service.stream(subscription)
    stream.wait_received(1)
    stream._requests.put(None)
    stream.wait_end()
    assert stream.error is None
    service.publish(topic, b"y")
    assert service.pull_data(subscription) == [b"y"]


def test_messages_are_shared_among_streams(service: Service) -> None:
    """Streams that wait on one subscription all get a part, and no message goes to two."""
    topic, subscription = service.pair()
    streams = [service.stream(subscription) for _ in range(4)]
    for stream in streams:
        wait_for(lambda stream=stream: stream.responses)
    for n in range(40):
        service.publish(topic, b"%d" % n)
    wait_for(lambda: sum(len(stream.received) for stream in streams), lambda seen: seen == 40)
    assert all(stream.received for stream in streams)
    assert sorted(int(data) for stream in streams for data in stream.data) == list(range(40))
