"""An emulator and Google's own clients, for tests that go through Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google import pubsub_v1
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from penstock.testing import PubSubEmulator, pubsub_emulator

PROJECT = "tests"
PullRequest = pubsub_v1.PullRequest.pb()
PullResponse = pubsub_v1.PullResponse.pb()


class Service:
    """Topics and subscriptions of an emulator, and what is in them."""

    def __init__(self, emulator: PubSubEmulator) -> None:
        self.emulator = emulator
        self.channel = grpc.insecure_channel(
            emulator.address, [("grpc.max_receive_message_length", -1)]
        )
        self.publisher = pubsub_v1.PublisherClient(
            transport=PublisherGrpcTransport(channel=self.channel)
        )
        self.subscriber = pubsub_v1.SubscriberClient(
            transport=SubscriberGrpcTransport(channel=self.channel)
        )
        self.schemas = pubsub_v1.SchemaServiceClient(
            transport=SchemaServiceGrpcTransport(channel=self.channel)
        )
        # The generated client warns of return_immediately, which is what a drain needs.
        self._pull = self.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull",
            request_serializer=PullRequest.SerializeToString,
            response_deserializer=PullResponse.FromString,
        )
        self._numbers = itertools.count()

    def topic(self, **settings: Any) -> str:
        """Make a topic; gives its full name."""
        name = f"projects/{PROJECT}/topics/topic-{next(self._numbers)}"
        self.publisher.create_topic(request={"name": name, **settings})
        return name

    def subscription(self, topic: str, **settings: Any) -> str:
        """Make a subscription; gives its full name."""
        name = f"projects/{PROJECT}/subscriptions/sub-{next(self._numbers)}"
        request = {"name": name, "topic": topic, "ack_deadline_seconds": 60, **settings}
        self.subscriber.create_subscription(request=request)
        return name

    def pair(self, **settings: Any) -> tuple[str, str]:
        """Make a topic and a subscription of it."""
        topic = self.topic()
        return topic, self.subscription(topic, **settings)

    def publish(self, topic: str, count: int, first: int = 0) -> None:
        """Publish messages that are numbered in their data and in an attribute."""
        for start in range(first, first + count, 1000):
            messages = [
                {"data": str(number).encode(), "attributes": {"n": str(number)}}
                for number in range(start, min(start + 1000, first + count))
            ]
            self.publisher.publish(request={"topic": topic, "messages": messages})

    def drain(self, subscription: str) -> list[Any]:
        """Pull and acknowledge everything; gives the messages as protobuf, in their order."""
        request = PullRequest(subscription=subscription, max_messages=1000, return_immediately=True)
        messages: list[Any] = []
        while pulled := self._pull(request, timeout=30).received_messages:
            messages += [received.message for received in pulled]
            ack_ids = [received.ack_id for received in pulled]
            self.subscriber.acknowledge(subscription=subscription, ack_ids=ack_ids)
        return messages

    def numbers(self, subscription: str) -> list[int]:
        """Drain messages whose data is a number."""
        return [int(message.data) for message in self.drain(subscription)]


@contextmanager
def service() -> Iterator[Service]:
    """Run an emulator in a process of its own, with clients."""
    with pubsub_emulator() as emulator:
        running = Service(emulator)
        try:
            yield running
        finally:
            running.channel.close()
