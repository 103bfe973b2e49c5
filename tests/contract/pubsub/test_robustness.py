"""What must not harm the emulator: malformed bytes, clients that hang or vanish, shutdown."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pytest
from google.api_core import exceptions
from google.pubsub_v1 import types

from penstock.testing import pubsub_emulator
from tests.support.pubsub_service import Service
from tests.support.waiting import wait_for

PUBLISHER = "google.pubsub.v1.Publisher"
SUBSCRIBER = "google.pubsub.v1.Subscriber"
SCHEMAS = "google.pubsub.v1.SchemaService"
IAM = "google.iam.v1.IAMPolicy"
METHODS = {
    PUBLISHER: (
        "Publish CreateTopic UpdateTopic GetTopic ListTopics ListTopicSubscriptions "
        "ListTopicSnapshots DeleteTopic DetachSubscription"
    ),
    SUBSCRIBER: (
        "Pull Acknowledge ModifyAckDeadline CreateSubscription GetSubscription "
        "UpdateSubscription ListSubscriptions DeleteSubscription ModifyPushConfig GetSnapshot "
        "ListSnapshots CreateSnapshot UpdateSnapshot DeleteSnapshot Seek"
    ),
    SCHEMAS: (
        "CreateSchema GetSchema ListSchemas ListSchemaRevisions CommitSchema RollbackSchema "
        "DeleteSchemaRevision DeleteSchema ValidateSchema ValidateMessage"
    ),
    IAM: "SetIamPolicy GetIamPolicy TestIamPermissions",
    "penstock.emulator.Admin": "Inject ClearFaults Deny Counters TopicCounters Stats",
}
PATHS = [f"/{service}/{name}" for service, names in METHODS.items() for name in names.split()]
CLEAN = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
}
TRUNCATED = b"\x0a\x7fprojects/contract"


def status(channel: grpc.Channel, path: str, payload: bytes) -> grpc.StatusCode:
    try:
        channel.unary_unary(path)(payload, timeout=20)
    except grpc.RpcError as exc:
        code: grpc.StatusCode = exc.code()
        return code
    return grpc.StatusCode.OK


def stream_status(channel: grpc.Channel, *payloads: bytes) -> grpc.StatusCode:
    call = channel.stream_stream(f"/{SUBSCRIBER}/StreamingPull")(iter(payloads), timeout=20)
    try:
        for _ in call:
            call.cancel()
    except grpc.RpcError as exc:
        code: grpc.StatusCode = exc.code()
        return code
    return grpc.StatusCode.OK


@pytest.fixture
def channel(service: Service) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.emulator.address) as opened:
        yield opened


def assert_alive(service: Service) -> None:
    """The whole way of a message still works."""
    topic = service.topic("alive")
    subscription = service.subscription(topic, "alive")
    service.publish(topic, b"x")
    service.ack(subscription, service.pull(subscription))
    assert service.emulator.counters(subscription).acked == 1


@pytest.mark.parametrize("path", PATHS)
def test_truncated_request_is_an_invalid_argument(
    service: Service, channel: grpc.Channel, path: str
) -> None:
    """Bytes that are no message of the method's kind are INVALID_ARGUMENT for every method."""
    assert status(channel, path, TRUNCATED) is grpc.StatusCode.INVALID_ARGUMENT


def test_truncated_stream_request_is_an_invalid_argument(
    service: Service, channel: grpc.Channel
) -> None:
    """A stream's first and later requests are checked alike."""
    _, subscription = service.pair()
    opening = types.StreamingPullRequest.serialize(
        types.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=10)
    )
    assert stream_status(channel, TRUNCATED) is grpc.StatusCode.INVALID_ARGUMENT
    assert stream_status(channel) is grpc.StatusCode.INVALID_ARGUMENT
    # Both at once, so that the error meets the first response while it is being written.
    for _ in range(20):
        call = channel.stream_stream(f"/{SUBSCRIBER}/StreamingPull")(
            iter([opening, TRUNCATED]), timeout=20
        )
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.streams == 0)
    assert_alive(service)


def seeds(service: Service) -> list[bytes]:
    """Valid requests of many kinds, to be damaged."""
    topic, subscription = service.pair(enable_exactly_once_delivery=True)
    service.publish(topic, *[b"x"] * 20)
    ack_ids = [message.ack_id for message in service.pull(subscription, 5)]
    message = {"data": b"data", "attributes": {"k": "v"}, "ordering_key": "o"}
    made: list[Any] = [
        types.PublishRequest(topic=topic, messages=[message] * 3),
        types.AcknowledgeRequest(subscription=subscription, ack_ids=ack_ids),
        types.ModifyAckDeadlineRequest(
            subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=10
        ),
        types.PullRequest(subscription=subscription, max_messages=3),
        types.StreamingPullRequest(
            subscription=subscription,
            stream_ack_deadline_seconds=10,
            ack_ids=ack_ids,
            modify_deadline_ack_ids=ack_ids,
            modify_deadline_seconds=[10] * len(ack_ids),
        ),
        types.UpdateTopicRequest(
            topic={"name": topic, "labels": {"a": "b"}}, update_mask={"paths": ["labels"]}
        ),
        types.Subscription(name=f"{subscription}-2", topic=topic, filter="attributes:a"),
        types.SeekRequest(subscription=subscription, time={"seconds": 1}),
    ]
    return [type(request).serialize(request) for request in made]


def damaged(rng: random.Random, payload: bytes) -> bytes:
    changed = bytearray(payload)
    for _ in range(rng.randint(1, 8)):
        kind = rng.randrange(4)
        at = rng.randrange(len(changed) + 1)
        if kind == 0:
            changed[at:at] = rng.randbytes(rng.randint(1, 6))
        elif kind == 1:
            del changed[at : at + rng.randint(1, 6)]
        elif kind == 2 and changed:
            changed[at % len(changed)] = rng.randrange(256)
        else:
            changed[at:] = changed[rng.randrange(len(changed) + 1) :]
    return bytes(changed[:4096])


# Damaged deletions and detachments are left out: they would take the other requests' ground away.
FUZZED = [
    path
    for path in PATHS
    if "Admin" not in path and path.rpartition("/")[2] not in ("DeleteTopic", "DeleteSubscription")
]


def test_damaged_requests_never_harm_the_server(service: Service, channel: grpc.Channel) -> None:
    """Thousands of damaged requests to all methods end with clean statuses, and all goes on."""
    rng = random.Random(7)
    payloads = seeds(service)
    # An empty subscription would make a pull wait.
    for n in range(2500):
        path = rng.choice(FUZZED)
        payload = damaged(rng, rng.choice(payloads))
        if path.endswith("/Pull"):
            payload += b"\x10\x01"
        code = status(channel, path, payload)
        assert code in CLEAN, (n, path, code, payload.hex())
    for n in range(300):
        payload = damaged(rng, payloads[4])
        code = stream_status(channel, payload)
        assert code in CLEAN | {grpc.StatusCode.CANCELLED}, (n, code, payload.hex())
    assert_alive(service)


def test_invalid_utf8_in_a_request_is_refused(service: Service, channel: grpc.Channel) -> None:
    """Text that is not UTF-8 is INVALID_ARGUMENT wherever it stands, and is never delivered."""
    topic, subscription = service.pair()
    name = topic.encode()
    start = b"\x0a" + bytes([len(name)]) + name
    for field in (
        b"\x12\x06\x0a\x01\xff\x12\x01v",  # an attribute's key
        b"\x12\x06\x0a\x01k\x12\x01\xff",  # an attribute's value
        b"\x2a\x01\xff",  # the ordering key
    ):
        message = b"\x0a\x01x" + field
        payload = start + b"\x12" + bytes([len(message)]) + message
        code = status(channel, f"/{PUBLISHER}/Publish", payload)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    bad_topic = b"\x0a\x02\xff\xfe"
    code = status(channel, f"/{PUBLISHER}/Publish", bad_topic + b"\x12\x03\x0a\x01x")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert service.pull(subscription) == []
    ack = b"\x0a" + bytes([len(subscription)]) + subscription.encode() + b"\x12\x02\xff\xfe"
    assert status(channel, f"/{SUBSCRIBER}/Acknowledge", ack) is grpc.StatusCode.INVALID_ARGUMENT


def test_unknown_fields_of_a_message_do_no_harm(service: Service, channel: grpc.Channel) -> None:
    """Fields that the API does not know are stored and delivered without a trace."""
    topic, subscription = service.pair()
    message = b"\x0a\x01x" + b"\xf8\x07\x01" + b"\xfa\x07\x03abc"
    payload = types.PublishRequest.serialize(types.PublishRequest(topic=topic))
    payload += b"\x12" + bytes([len(message)]) + message + b"\xf8\x07\x01"
    assert status(channel, f"/{PUBLISHER}/Publish", payload) is grpc.StatusCode.OK
    assert service.pull_data(subscription) == [b"x"]


def test_error_about_a_huge_name_can_be_read(service: Service) -> None:
    """An error does not carry more of a request than a client's channel takes."""
    for name in ("x" * 6000, "\U0001f4a1" * 500):
        with pytest.raises(exceptions.InvalidArgument):
            service.publisher.create_topic(name=name)
        with pytest.raises((exceptions.InvalidArgument, exceptions.NotFound)):
            service.publisher.get_topic(topic=f"projects/p/topics/{name}")


def test_unknown_method_is_unimplemented(service: Service, channel: grpc.Channel) -> None:
    """A method that the API does not have is UNIMPLEMENTED."""
    code = status(channel, f"/{PUBLISHER}/Nosuch", b"")
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_client_that_does_not_read_costs_no_memory() -> None:
    """A stream whose client reads nothing holds a few responses, not the whole backlog."""
    with pubsub_emulator() as emulator:
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(emulator.address, options=options) as channel:
            topic, subscription = "projects/p/topics/ttt", "projects/p/subscriptions/sss"
            channel.unary_unary(f"/{PUBLISHER}/CreateTopic")(
                types.Topic.serialize(types.Topic(name=topic))
            )
            channel.unary_unary(f"/{SUBSCRIBER}/CreateSubscription")(
                types.Subscription.serialize(types.Subscription(name=subscription, topic=topic))
            )
            request = types.PublishRequest(topic=topic, messages=[{"data": b"x" * 9000}] * 1000)
            payload = types.PublishRequest.serialize(request)
            for _ in range(8):
                channel.unary_unary(f"/{PUBLISHER}/Publish")(payload)
            process = psutil.Process(emulator.pid())
            before = process.memory_info().rss
            opening = types.StreamingPullRequest.serialize(
                types.StreamingPullRequest(
                    subscription=subscription, stream_ack_deadline_seconds=600
                )
            )
            ended = threading.Event()

            def requests() -> Iterator[bytes]:
                yield opening
                ended.wait(30)

            call = channel.stream_stream(f"/{SUBSCRIBER}/StreamingPull")(requests())
            wait_for(lambda: emulator.counters(subscription), lambda seen: seen.outstanding > 0)
            steady = _steady(lambda: emulator.counters(subscription).outstanding)
            assert steady < 4000
            assert process.memory_info().rss - before < 40 * 2**20
            ended.set()
            call.cancel()


def _steady(look: Any) -> int:
    """Look until the number has not changed for half a second."""
    seen, since = look(), time.monotonic()

    def is_steady() -> bool:
        nonlocal seen, since
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > 0.5

    wait_for(is_steady)
    return int(seen)


def test_shutdown_ends_open_calls_and_is_quick() -> None:
    """Open streams and waiting pulls do not keep the emulator from ending."""
    errors: list[grpc.StatusCode] = []
    with pubsub_emulator(in_process=True) as emulator:
        channel = grpc.insecure_channel(emulator.address)
        topic, subscription = "projects/p/topics/ttt", "projects/p/subscriptions/sss"
        channel.unary_unary(f"/{PUBLISHER}/CreateTopic")(
            types.Topic.serialize(types.Topic(name=topic))
        )
        channel.unary_unary(f"/{SUBSCRIBER}/CreateSubscription")(
            types.Subscription.serialize(types.Subscription(name=subscription, topic=topic))
        )
        opening = types.StreamingPullRequest.serialize(
            types.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=10)
        )
        pulling = types.PullRequest.serialize(
            types.PullRequest(subscription=subscription, max_messages=1)
        )
        closed = threading.Event()

        def stream() -> None:
            def requests() -> Iterator[bytes]:
                yield opening
                closed.wait(20)

            try:
                list(channel.stream_stream(f"/{SUBSCRIBER}/StreamingPull")(requests()))
            except grpc.RpcError as exc:
                errors.append(exc.code())

        def pull() -> None:
            try:
                channel.unary_unary(f"/{SUBSCRIBER}/Pull")(pulling)
            except grpc.RpcError as exc:
                errors.append(exc.code())

        threads = [threading.Thread(target=target) for target in (stream, stream, pull)]
        for thread in threads:
            thread.start()
        wait_for(lambda: emulator.counters(subscription), lambda seen: seen.streams == 2)
        wait_for(lambda: emulator.calls().get("Pull"))
        began = time.monotonic()
    assert time.monotonic() - began < 3
    closed.set()
    for thread in threads:
        thread.join(10)
    channel.close()
    assert len(errors) == 3


def test_a_restart_cuts_connections_and_keeps_everything_else(service: Service) -> None:
    """Clients see a service that is away; what was published, leased or acknowledged stays so."""
    topic, subscription = service.pair()
    service.publish(topic, b"1", b"2")
    (leased,) = service.pull_some(subscription, 1)
    stream = service.stream(subscription, max_outstanding_messages=1)
    stream.wait_received(1)
    service.emulator.restart(0.2)
    assert isinstance(stream.wait_error(), exceptions.ServerError)
    # Asked until it is there again.
    counters = service.emulator.counters(subscription)
    assert (counters.published, counters.outstanding) == (2, 2)
    wait_for(lambda: _acked(service, subscription, leased))
    assert service.emulator.counters(subscription).outstanding == 1


def test_a_restart_of_no_known_length_is_refused(service: Service) -> None:
    with pytest.raises(grpc.RpcError, match="is not between 0 and 600"):
        service.emulator.restart(-1)


def _acked(service: Service, subscription: str, leased: Any) -> bool:
    try:
        service.ack(subscription, [leased])
    except exceptions.ServiceUnavailable:
        # The client's connection was refused a moment ago, and waits before it tries again.
        return False
    return True
