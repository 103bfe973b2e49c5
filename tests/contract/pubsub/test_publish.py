"""Publishing: batches, ordering keys, what a message may be, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1 import types
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from tests.support.pubsub_service import RawStream, Service, fields_of

TEN_MIB = 10 * 2**20


def test_message_arrives_as_it_was_published(service: Service) -> None:
    """Data, attributes, ordering key, id and time of a message reach the subscriber."""
    topic, subscription = service.pair()
    attributes = {"empty": "", "caf\u00e9": "\u65e5\u672c\u8a9e", "z": "1", "a": "\U0001f4a1"}
    data = bytes(range(256))
    message = {"data": data, "attributes": attributes, "ordering_key": "cl\u00e9"}
    (message_id,) = service.publish(topic, message)
    (received,) = service.pull(subscription)
    assert received.message.data == data
    assert dict(received.message.attributes) == attributes
    assert received.message.ordering_key == "cl\u00e9"
    assert received.message.message_id == message_id
    assert received.message.publish_time.timestamp() == service.clock.time()
    assert received.delivery_attempt == 0
    assert 0 < len(received.ack_id) < 200


def test_what_a_publisher_says_of_id_and_time_is_overruled(service: Service) -> None:
    """Message id and publish time are the service's to give."""
    topic, subscription = service.pair()
    message = types.PubsubMessage(
        data=b"x", message_id="mine", publish_time={"seconds": 1, "nanos": 2}
    )
    (message_id,) = service.publish(topic, message)
    (received,) = service.pull(subscription)
    assert received.message.message_id == message_id != "mine"
    assert received.message.publish_time.timestamp() == service.clock.time()


def test_ids_are_unique_and_in_the_order_of_the_request(service: Service) -> None:
    """Every message has an id of its own, given in the order of the messages."""
    topic, subscription = service.pair()
    ids = service.publish(topic, *[b"%d" % n for n in range(1000)])
    ids += service.publish(topic, b"1000")
    assert len(set(ids)) == 1001
    received = service.pull(subscription, 1000) + service.pull(subscription, 1000)
    by_id = {message.message.message_id: message.message.data for message in received}
    assert [by_id[message_id] for message_id in ids] == [b"%d" % n for n in range(1001)]


def test_every_subscription_gets_every_message(service: Service) -> None:
    """Subscriptions of one topic are independent of each other."""
    topic = service.topic()
    readers = [service.subscription(topic, f"reader-{n}") for n in range(3)]
    service.publish(topic, b"a", b"b")
    for reader in readers:
        received = service.pull(reader)
        assert [message.message.data for message in received] == [b"a", b"b"]
        service.ack(reader, received)
        assert service.emulator.counters(reader).acked == 2


def test_client_batches_reach_the_topic_whole(service: Service) -> None:
    """The publisher client's batching works against the emulator: all ids, few requests."""
    topic, subscription = service.pair()
    settings = pubsub_v1.types.BatchSettings(max_messages=100, max_latency=0.5)
    client = pubsub_v1.PublisherClient(batch_settings=settings)
    futures = [client.publish(topic, b"%d" % n, number=str(n)) for n in range(500)]
    ids = {future.result(timeout=30) for future in futures}
    client.stop()
    client.transport.close()
    assert len(ids) == 500
    assert service.emulator.calls()["Publish"] < 50
    received = service.pull_some(subscription, 500)
    assert {message.message.message_id for message in received} == ids
    assert all(m.message.attributes["number"] == m.message.data.decode() for m in received)


def test_client_keeps_the_order_of_each_key(service: Service) -> None:
    """With enable_message_ordering each key's messages arrive in the order of publishing."""
    topic, subscription = service.pair(enable_message_ordering=True)
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    client = pubsub_v1.PublisherClient(publisher_options=options)
    futures = [client.publish(topic, b"%d" % n, ordering_key=f"key-{n % 7}") for n in range(700)]
    for future in futures:
        future.result(timeout=30)
    client.stop()
    client.transport.close()
    by_key: dict[str, list[int]] = {}
    for message in service.pull_some(subscription, 700):
        by_key.setdefault(message.message.ordering_key, []).append(int(message.message.data))
    assert by_key == {f"key-{k}": list(range(k, 700, 7)) for k in range(7)}


def test_publishers_at_the_same_time_lose_nothing(service: Service) -> None:
    """Messages of many threads are all stored, each once."""
    topic, subscription = service.pair()

    def publish(thread: int) -> None:
        for request in range(20):
            service.publish(topic, *[b"%d/%d/%d" % (thread, request, n) for n in range(25)])

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = service.pull_some(subscription, 4000)
    assert len({message.message.data for message in received}) == 4000
    assert service.emulator.topic_counters(topic).published == 4000


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ([{"data": b""}], "messages"),
        ([{"data": b"x"}, {"ordering_key": "only"}], "messages"),
        ([{"data": b"x"}] * 1001, "message_count"),
        ([{"attributes": {f"k{n}": "" for n in range(101)}}], "attributes_count"),
        ([{"attributes": {"k" * 257: ""}}], "attribute key size"),
        ([{"attributes": {"\u00e9" * 129: ""}}], "attribute key size"),
        ([{"attributes": {"k": "v" * 1025}}], "attribute value size"),
        ([{"attributes": {"": "v"}}], "attributes"),
        ([{"attributes": {"goog": "v"}}], "attributes"),
        ([{"data": b"x"}, {"attributes": {"googclient_x": "v"}}], "attributes"),
        ([{"data": b"x", "ordering_key": "k" * 1025}], "ordering_key"),
        ([{"data": b"x" * TEN_MIB}], "request_size"),
        ([{"data": b"x" * 2**20}] * 10, "request_size"),
    ],
)
def test_message_beyond_the_limits_is_refused(
    service: Service, messages: list[dict[str, Any]], field: str
) -> None:
    """A request over a limit is INVALID_ARGUMENT, names the field, and stores nothing."""
    topic = service.topic()
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.publish(topic, *messages)
    assert fields_of(caught.value) == [field]
    assert service.emulator.topic_counters(topic).published == 0


def test_message_at_the_limits_is_taken(service: Service) -> None:
    """1000 messages, 100 attributes, 256-byte keys, 1024-byte values and keys are allowed."""
    topic, subscription = service.pair()
    attributes = {f"{n:03}" + "k" * 253: "v" * 1024 for n in range(100)}
    service.publish(topic, {"attributes": attributes, "ordering_key": "o" * 1024})
    service.publish(topic, *[b"x"] * 1000)
    (received,) = service.pull(subscription, 1)
    assert dict(received.message.attributes) == attributes
    assert service.emulator.counters(subscription).published == 1001


def test_message_of_nearly_ten_megabytes_goes_through(service: Service) -> None:
    """The largest message that fits a request of 10 MiB is stored and delivered whole.

    With PUBSUB_EMULATOR_HOST the client's own channel takes 4 MiB, so this one is made here.
    """
    topic, subscription = service.pair()
    data = bytes(range(256)) * (TEN_MIB // 256)
    data = data[: TEN_MIB - 200]
    service.publish(topic, data)
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(service.emulator.address, options=options) as channel:
        client = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        (received,) = client.pull(subscription=subscription, max_messages=5).received_messages
        assert received.message.data == data
        service.nack(subscription, [received])
        stream = RawStream(client, subscription)
        assert stream.wait_received(1)[0].message.data == data
        stream.close()


def test_backlog_of_large_messages_fits_the_clients_channel(service: Service) -> None:
    """Responses stay below the 4 MiB that the official client takes, whatever is waiting."""
    topic, subscription = service.pair()
    for n in range(70):
        service.publish(topic, bytes([n]) * 2**20)
    received = service.pull_some(subscription, 35) + service.stream(subscription).wait_received(35)
    assert [message.message.data[:1] for message in received] == [bytes([n]) for n in range(70)]


def test_publishing_to_an_unknown_topic_is_not_found(service: Service) -> None:
    """A topic that does not exist is NOT_FOUND; a name that is none is INVALID_ARGUMENT."""
    with pytest.raises(exceptions.NotFound, match=r"resource=none"):
        service.publish("projects/contract/topics/none", b"x")
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.publish("none", b"x")
    assert fields_of(caught.value) == ["topic"]
