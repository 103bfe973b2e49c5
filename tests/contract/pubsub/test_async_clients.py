"""The generated asyncio clients; the emulator runs in a process of its own.

gRPC's asyncio has one poller for a process: an emulator in a thread of the same process would
share it with the clients under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from google.api_core import exceptions
from google.pubsub_v1 import PublisherAsyncClient, SchemaServiceAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.types import Schema, StreamingPullRequest

from penstock.testing import PubSubEmulator, pubsub_emulator

TOPIC = "projects/contract/topics/orders"
SUBSCRIPTION = "projects/contract/subscriptions/reader"


@pytest.fixture(scope="module")
def emulator() -> Iterator[PubSubEmulator]:
    with pubsub_emulator() as running:
        yield running


async def fresh() -> tuple[PublisherAsyncClient, SubscriberAsyncClient]:
    """Give clients, and a topic and subscription without a past."""
    publisher, subscriber = PublisherAsyncClient(), SubscriberAsyncClient()
    for delete in (
        subscriber.delete_subscription(subscription=SUBSCRIPTION),
        publisher.delete_topic(topic=TOPIC),
    ):
        try:
            await delete
        except exceptions.NotFound:
            continue
    await publisher.create_topic(name=TOPIC)
    await subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    return publisher, subscriber


async def close(*clients: PublisherAsyncClient | SubscriberAsyncClient) -> None:
    for client in clients:
        await client.transport.close()


def test_async_clients_publish_pull_and_acknowledge(emulator: PubSubEmulator) -> None:
    """PublisherAsyncClient and SubscriberAsyncClient work unmodified."""

    async def scenario() -> None:
        publisher, subscriber = await fresh()
        calls = [publisher.publish(topic=TOPIC, messages=[{"data": b"%d" % n}]) for n in range(50)]
        answers = await asyncio.gather(*calls)
        ids = {message_id for answer in answers for message_id in answer.message_ids}
        assert len(ids) == 50
        pulled = await subscriber.pull(subscription=SUBSCRIPTION, max_messages=100)
        received = list(pulled.received_messages)
        assert {message.message.message_id for message in received} == ids
        await subscriber.acknowledge(
            subscription=SUBSCRIPTION, ack_ids=[message.ack_id for message in received]
        )
        listed = [
            topic.name async for topic in await publisher.list_topics(project="projects/contract")
        ]
        assert listed == [TOPIC]
        with pytest.raises(exceptions.AlreadyExists):
            await publisher.create_topic(name=TOPIC)
        await close(publisher, subscriber)

    asyncio.run(scenario())
    assert emulator.counters(SUBSCRIPTION).acked == 50


def test_async_client_streams(emulator: PubSubEmulator) -> None:
    """SubscriberAsyncClient.streaming_pull delivers, and its requests acknowledge."""

    async def scenario() -> None:
        publisher, subscriber = await fresh()
        requests: asyncio.Queue[StreamingPullRequest] = asyncio.Queue()
        await requests.put(
            StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=60)
        )

        async def sending() -> AsyncIterator[StreamingPullRequest]:
            while True:
                yield await requests.get()

        stream = await subscriber.streaming_pull(requests=sending())
        await publisher.publish(topic=TOPIC, messages=[{"data": b"%d" % n} for n in range(100)])
        seen = 0
        async for response in stream:
            ids = [message.ack_id for message in response.received_messages]
            if ids:
                await requests.put(StreamingPullRequest(ack_ids=ids))
            seen += len(ids)
            if seen == 100:
                break
        async with asyncio.timeout(15):
            while emulator.counters(SUBSCRIPTION).acked < 100:
                await asyncio.sleep(0.01)
        stream.cancel()
        await close(publisher, subscriber)

    asyncio.run(scenario())


def test_async_schema_client_works(emulator: PubSubEmulator) -> None:
    """SchemaServiceAsyncClient creates and reads a schema."""

    async def scenario() -> None:
        client = SchemaServiceAsyncClient()
        definition = '{"type": "record", "name": "R", "fields": []}'
        made = await client.create_schema(
            parent="projects/contract",
            schema=Schema(type_=Schema.Type.AVRO, definition=definition),
            schema_id="async",
        )
        assert await client.get_schema(name=made.name) == made
        await client.delete_schema(name=made.name)
        await client.transport.close()

    asyncio.run(scenario())
