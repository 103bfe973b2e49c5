"""Many streams and subscriptions at once: every message to one stream, exactly once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.support.pubsub_service import Service
from tests.support.waiting import wait_for


@pytest.mark.parametrize("ordered", [False, True])
def test_messages_spread_over_streams_without_loss_or_repetition(
    service: Service, ordered: bool
) -> None:
    """20 streams on 4 subscriptions share what 4 publishers send, each message once."""
    topic = service.topic()
    readers = [
        service.subscription(topic, f"reader-{n}", enable_message_ordering=ordered)
        for n in range(4)
    ]
    streams = {
        reader: [
            service.stream(
                reader, acks=True, max_outstanding_messages=100, stream_ack_deadline_seconds=600
            )
            for _ in range(5)
        ]
        for reader in readers
    }
    for reader in readers:
        wait_for(lambda r=reader: service.emulator.counters(r), lambda seen: seen.streams == 5)
    threads = [threading.Thread(target=publish, args=(service, topic, n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {b"%d/%d/%d" % (s, k, n) for s in range(4) for k in range(40) for n in range(10)}
    for reader in readers:
        wait_for(
            lambda r=reader: service.emulator.counters(r),
            lambda seen: seen.acked == len(expected),
            seconds=60,
        )
        seen = Counter(data for stream in streams[reader] for data in stream.data)
        assert set(seen) == expected
        assert set(seen.values()) == {1}
        assert all(stream.received for stream in streams[reader])
        assert service.emulator.counters(reader).redelivered == 0


def publish(service: Service, topic: str, sender: int) -> None:
    """Send ten requests with one message of each of 40 keys."""
    for request in range(10):
        messages = [
            {
                "data": b"%d/%d/%d" % (sender, shard, request),
                "ordering_key": f"{sender}/{shard}",
            }
            for shard in range(40)
        ]
        service.publish(topic, *messages)
