"""Memory of the emulator's process: bounded per stored message, given back when acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest
from google.pubsub_v1 import types

from penstock.pubsub.protos import handler
from penstock.testing import PubSubEmulator, pubsub_emulator
from tests.support.waiting import wait_for

TOPIC, SUBSCRIPTION = "projects/p/topics/ttt", "projects/p/subscriptions/sss"
PAYLOAD = 1024
MOST_OVERHEAD = 500


class Bench:
    """Raw calls that cost the test itself little."""

    def __init__(self, emulator: PubSubEmulator, channel: grpc.Channel) -> None:
        self.emulator = emulator
        self._process = psutil.Process(emulator.pid())
        self._publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        self._pull = channel.unary_unary("/google.pubsub.v1.Subscriber/Pull")
        self._acknowledge = channel.unary_unary("/google.pubsub.v1.Subscriber/Acknowledge")
        channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")(
            types.Topic.serialize(types.Topic(name=TOPIC)), wait_for_ready=True
        )
        channel.unary_unary("/google.pubsub.v1.Subscriber/CreateSubscription")(
            types.Subscription.serialize(
                types.Subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=600)
            )
        )

    @property
    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    def publish(self, requests: int, messages: int) -> None:
        request = types.PublishRequest(topic=TOPIC, messages=[{"data": b"x" * PAYLOAD}] * messages)
        payload = types.PublishRequest.serialize(request)
        flying: deque[Any] = deque()
        for _ in range(requests):
            if len(flying) == 8:
                flying.popleft().result()
            flying.append(self._publish.future(payload, timeout=60))
        for call in flying:
            call.result()

    def drain(self) -> None:
        """Pull and acknowledge until nothing is left."""
        request = types.PullRequest.serialize(
            types.PullRequest(subscription=SUBSCRIPTION, max_messages=1000, return_immediately=True)
        )
        while response := self._pull(request, timeout=60):
            received = handler("RawPullResponse").list_to_record_batch([response])
            ids: pa.StringArray = received.column(0).flatten().field("ack_id")
            ack = types.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=ids.to_pylist())
            self._acknowledge(types.AcknowledgeRequest.serialize(ack), timeout=60)
        assert self.emulator.counters(SUBSCRIPTION).unacked == 0
        wait_for(
            lambda: self.emulator.topic_counters(TOPIC),
            lambda seen: seen.stored == 0 and seen.stored_bytes == 0,
        )


@pytest.fixture
def bench() -> Iterator[Bench]:
    with (
        pubsub_emulator() as emulator,
        grpc.insecure_channel(emulator.address) as channel,
    ):
        made = Bench(emulator, channel)
        # Whatever is allocated once only is no cost of a message.
        made.publish(3, 1000)
        made.publish(1000, 1)
        made.drain()
        yield made


@pytest.mark.parametrize(("requests", "messages"), [(200, 1000), (10_000, 1)])
def test_stored_message_costs_its_payload_and_500_bytes_at_most(
    bench: Bench, requests: int, messages: int
) -> None:
    """That holds for requests of 1000 messages, and for requests of one message alike."""
    before = bench.rss
    bench.publish(requests, messages)
    each = (bench.rss - before) / (requests * messages)
    assert bench.emulator.counters(SUBSCRIPTION).unacked == requests * messages
    assert each <= PAYLOAD + MOST_OVERHEAD


def test_memory_is_flat_over_rounds_of_publishing_and_acknowledging(bench: Bench) -> None:
    """Ten rounds of 30 MB leave the process no larger than the first ones did."""
    sizes = []
    for _ in range(10):
        bench.publish(30, 1000)
        bench.drain()
        sizes.append(bench.rss)
    growth = max(sizes[5:]) - max(sizes[:3])
    assert growth < 15 * 2**20, [size // 2**20 for size in sizes]
