"""The official Pub/Sub clients on an emulator, with the few calls that most tests make."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherClient as GapicPublisher
from google.pubsub_v1 import types
from google.rpc import error_details_pb2

from penstock._core.clock import ManualClock
from penstock.testing import PubSubEmulator, pubsub_emulator
from tests.support.waiting import wait_for

PROJECT = "projects/contract"


class Service:
    """An emulator whose clock the test owns, and the clients that talk to it."""

    def __init__(self, emulator: PubSubEmulator, clock: ManualClock) -> None:
        self.emulator = emulator
        self.clock = clock
        self.publisher = pubsub_v1.PublisherClient()
        self.subscriber = pubsub_v1.SubscriberClient()
        self._streams: list[RawStream] = []

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self.publisher.stop()
        self.publisher.transport.close()
        self.subscriber.close()

    def topic(self, name: str = "orders", **settings: Any) -> str:
        request = {"name": f"{PROJECT}/topics/{name}", **settings}
        return str(self.publisher.create_topic(request=request).name)

    def subscription(self, topic: str, name: str = "reader", **settings: Any) -> str:
        request = {"name": f"{PROJECT}/subscriptions/{name}", "topic": topic, **settings}
        return str(self.subscriber.create_subscription(request=request).name)

    def pair(self, **settings: Any) -> tuple[str, str]:
        """Make a topic and a subscription with these settings."""
        topic = self.topic()
        return topic, self.subscription(topic, **settings)

    def publish(self, topic: str, *messages: Any) -> list[str]:
        """Publish in one request; a message is bytes or the fields of a PubsubMessage."""
        made = [{"data": m} if isinstance(m, bytes) else m for m in messages]
        answer = GapicPublisher.publish(self.publisher, topic=topic, messages=made, retry=None)
        return list(answer.message_ids)

    def pull(self, subscription: str, most: int = 100) -> list[types.ReceivedMessage]:
        """Pull what is ready now, and do not wait for more."""
        with warnings.catch_warnings():
            # return_immediately is deprecated, and just what a test needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            request = types.PullRequest(
                subscription=subscription, max_messages=most, return_immediately=True
            )
            return list(self.subscriber.pull(request=request).received_messages)

    def pull_some(self, subscription: str, count: int) -> list[types.ReceivedMessage]:
        """Pull until so many messages have come."""
        found: list[types.ReceivedMessage] = []
        wait_for(
            lambda: found.extend(self.pull(subscription, count - len(found))) or len(found),
            lambda seen: seen == count,
        )
        return found

    def pull_data(self, subscription: str, most: int = 100) -> list[bytes]:
        return [received.message.data for received in self.pull(subscription, most)]

    def ack(self, subscription: str, received: Sequence[types.ReceivedMessage]) -> None:
        ids = [message.ack_id for message in received]
        self.subscriber.acknowledge(subscription=subscription, ack_ids=ids, retry=None)

    def modify(
        self, subscription: str, received: Sequence[types.ReceivedMessage], seconds: int
    ) -> None:
        ids = [message.ack_id for message in received]
        self.subscriber.modify_ack_deadline(
            subscription=subscription, ack_ids=ids, ack_deadline_seconds=seconds, retry=None
        )

    def nack(self, subscription: str, received: Sequence[types.ReceivedMessage]) -> None:
        self.modify(subscription, received, 0)

    def expire(self, subscription: str, seconds: float, count: int) -> None:
        """Let time pass until so many more leases have ended."""
        before = self.emulator.counters(subscription).expired
        self.clock.advance(seconds)
        wait_for(
            lambda: self.emulator.counters(subscription),
            lambda seen: seen.expired == before + count,
        )

    def stream(self, subscription: str, **opening: Any) -> RawStream:
        made = RawStream(self.subscriber, subscription, **opening)
        self._streams.append(made)
        return made


class RawStream:
    """One StreamingPull, as the generated client offers it; a thread reads the responses."""

    def __init__(
        self, client: Any, subscription: str, *, acks: bool = False, **opening: Any
    ) -> None:
        self._acks = acks
        self._requests: queue.SimpleQueue[types.StreamingPullRequest | None] = queue.SimpleQueue()
        opening = {"stream_ack_deadline_seconds": 10, **opening}
        self._requests.put(types.StreamingPullRequest(subscription=subscription, **opening))
        self._call = client.streaming_pull(requests=iter(self._requests.get, None), timeout=60)
        self.responses: list[types.StreamingPullResponse] = []
        self.received: list[types.ReceivedMessage] = []
        self.error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="raw-stream")
        self._thread.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                received = list(response.received_messages)
                if self._acks and received:
                    self.ack(received)
                self.received.extend(received)
                self.responses.append(response)
        except exceptions.GoogleAPICallError as exc:
            self.error = exc
        finally:
            self._ended.set()

    def send(self, **fields: Any) -> None:
        self._requests.put(types.StreamingPullRequest(**fields))

    def ack(self, received: Sequence[types.ReceivedMessage]) -> None:
        self.send(ack_ids=[message.ack_id for message in received])

    def modify(self, received: Sequence[types.ReceivedMessage], seconds: int) -> None:
        self.send(
            modify_deadline_ack_ids=[message.ack_id for message in received],
            modify_deadline_seconds=[seconds] * len(received),
        )

    @property
    def data(self) -> list[bytes]:
        return [received.message.data for received in self.received]

    def wait_received(self, count: int) -> list[types.ReceivedMessage]:
        """Wait until exactly so many messages have come in all."""
        return wait_for(lambda: list(self.received), lambda seen: len(seen) == count)

    def wait_end(self) -> None:
        """Wait until the server has ended the stream."""
        wait_for(self._ended.is_set)

    def wait_error(self) -> exceptions.GoogleAPICallError:
        """Wait until the server has ended the stream with an error."""
        wait_for(self._ended.is_set)
        assert isinstance(self.error, exceptions.GoogleAPICallError)
        return self.error

    @property
    def is_open(self) -> bool:
        return not self._ended.is_set()

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._thread.join(10)


@contextmanager
def running_service() -> Iterator[Service]:
    """Run an emulator in a thread of this process, with a clock that stands still."""
    clock = ManualClock()
    with pubsub_emulator(in_process=True, clock=clock) as emulator:
        service = Service(emulator, clock)
        try:
            yield service
        finally:
            service.close()


def fields_of(error: exceptions.GoogleAPICallError) -> list[str]:
    """List the offending fields that an INVALID_ARGUMENT names."""
    return [
        violation.field
        for detail in error.details
        if isinstance(detail, error_details_pb2.BadRequest)
        for violation in detail.field_violations
    ]


def failures_of(error: exceptions.GoogleAPICallError) -> dict[str, str]:
    """Give the reason for each ack id that an exactly-once subscription refused."""
    return {
        ack_id: reason
        for detail in error.details
        if isinstance(detail, error_details_pb2.ErrorInfo)
        for ack_id, reason in detail.metadata.items()
    }
