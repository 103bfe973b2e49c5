"""The emulator against the raw ceiling of gRPC in Python, in one run.

The ceiling is a server of the same kind that sends one canned response of 1000 messages again and
again, or answers each publish with canned ids: what gRPC itself costs, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import psutil
import pyarrow as pa
from google.pubsub_v1.types import pubsub as api

from penstock.emulator.pubsub import wire
from penstock.pubsub.protos import handler
from penstock.testing import pubsub_emulator

MESSAGES_PER_REQUEST = 1000
PAYLOAD_BYTES = 1024
IN_FLIGHT = 4
TOPIC, SUBSCRIPTION = "projects/bench/topics/bench", "projects/bench/subscriptions/bench"
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def publish_request(topic: str = TOPIC) -> bytes:
    """One PublishRequest of 1 KB messages with two attributes."""
    message = api.PubsubMessage(
        data=os.urandom(PAYLOAD_BYTES), attributes={"origin": "bench", "kind": "order"}
    )
    request = api.PublishRequest(topic=topic, messages=[message] * MESSAGES_PER_REQUEST)
    return bytes(api.PublishRequest.serialize(request))


def canned_response() -> bytes:
    """One StreamingPullResponse of the same messages, as large as the emulator's."""
    numbers = np.arange(MESSAGES_PER_REQUEST)
    delivery = wire.Delivery(
        uid=1,
        messages=wire.decode_publish(publish_request()).messages,
        ids=numbers + 10**16,
        times_us=np.full(MESSAGES_PER_REQUEST, int(time.time() * 1e6)),
        positions=numbers,
        attempts=numbers,
    )
    return wire.encode_received(delivery, with_attempts=False)


def serve_canned() -> None:
    """Run the ceiling's server in this process until standard input ends."""

    async def run() -> None:
        response = canned_response()
        ids = wire.encode_publish_response(wire.message_ids(10**16, MESSAGES_PER_REQUEST))

        async def stream(requests: Any, context: Any) -> None:
            async for _ in requests:
                break
            while True:
                await context.write(response)

        async def publish(payload: bytes, context: Any) -> bytes:
            del payload, context
            return ids

        server = grpc.aio.server(options=_OPTIONS)
        methods = {
            "google.pubsub.v1.Subscriber": {
                "StreamingPull": grpc.stream_stream_rpc_method_handler(stream)
            },
            "google.pubsub.v1.Publisher": {"Publish": grpc.unary_unary_rpc_method_handler(publish)},
        }
        for name, handlers in methods.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"127.0.0.1:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(None)

    asyncio.run(run())


@contextlib.contextmanager
def canned_server() -> Iterator[str]:
    """Run the ceiling's server in a process of its own."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.emulator", "--serve-canned"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        yield child.stdout.readline().decode().strip()
    finally:
        child.communicate(timeout=10)


def publish_rate(address: str, requests: int, topic: str = TOPIC) -> float:
    """Publish so many requests, a few in flight at a time; messages per second."""
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        payload = publish_request(topic)
        call(payload, wait_for_ready=True, timeout=30)
        flying: deque[Any] = deque()
        began = time.perf_counter()
        for _ in range(requests):
            if len(flying) == IN_FLIGHT:
                flying.popleft().result()
            flying.append(call.future(payload, timeout=60))
        for future in flying:
            future.result()
        return requests * MESSAGES_PER_REQUEST / (time.perf_counter() - began)


def delivery_rate(address: str, messages: int, *, acks: bool) -> float:
    """Receive so many messages over one stream, acknowledging them or not; messages per second."""
    opening = api.StreamingPullRequest.serialize(
        api.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=600)
    )
    ended = threading.Event()

    def requests() -> Iterator[bytes]:
        yield opening
        ended.wait()

    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        acknowledge = channel.unary_unary("/google.pubsub.v1.Subscriber/Acknowledge")
        stream = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(requests())
        flying: deque[Any] = deque()
        received, began = 0, 0.0
        for response in stream:
            if len(response) < PAYLOAD_BYTES:
                continue
            if not began:
                # The first response carries the cost of connecting.
                began = time.perf_counter()
            else:
                received += MESSAGES_PER_REQUEST
            if acks:
                flying.append(acknowledge.future(_ack_request(response), timeout=60))
                if len(flying) > IN_FLIGHT:
                    flying.popleft().result()
            if received >= messages:
                break
        for future in flying:
            future.result()
        rate = received / (time.perf_counter() - began)
        ended.set()
        stream.cancel()
    return rate


def _ack_request(response: bytes) -> bytes:
    received = handler("RawPullResponse").list_to_record_batch([response]).column(0).flatten()
    converter = handler("AcknowledgeRequest")
    schema = converter.schema()
    ids = received.field("ack_id")
    offsets = pa.array([0, len(ids)], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, ids).cast(schema.field("ack_ids").type)
    batch = pa.RecordBatch.from_arrays([pa.array([SUBSCRIPTION]), lists], schema=schema)
    encoded: bytes = converter.record_batch_to_array(batch)[0].as_py()
    return encoded


def measure(messages: int) -> dict[str, float]:
    """Run everything once, each server in its own process."""
    requests = messages // MESSAGES_PER_REQUEST
    found: dict[str, float] = {}
    with canned_server() as ceiling:
        found["ceiling publish"] = publish_rate(ceiling, requests)
        found["ceiling delivery"] = delivery_rate(ceiling, messages, acks=False)
    with pubsub_emulator() as emulator:
        create_resources(emulator.address)
        process = psutil.Process(emulator.pid())
        publish_rate(emulator.address, 20)
        delivery_rate(emulator.address, 20 * MESSAGES_PER_REQUEST, acks=True)
        before = process.memory_info().rss
        # Cold: every stored byte is memory that the process has never had before.
        found["publish, cold"] = publish_rate(emulator.address, requests)
        stored = process.memory_info().rss - before
        found["bytes per message over payload"] = stored / messages - PAYLOAD_BYTES
        found["delivery with acks"] = delivery_rate(emulator.address, messages, acks=True)
        # Warm: the same volume again, once the first has been acknowledged and freed.
        deadline = time.monotonic() + 30
        while emulator.topic_counters(TOPIC).stored > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        found["publish"] = publish_rate(emulator.address, requests)
        found["delivery"] = delivery_rate(emulator.address, messages, acks=False)
    return found


def create_resources(address: str, topic: str = TOPIC, subscription: str = SUBSCRIPTION) -> None:
    """Make a topic and its subscription."""
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")(
            api.Topic.serialize(api.Topic(name=topic)), wait_for_ready=True, timeout=30
        )
        channel.unary_unary("/google.pubsub.v1.Subscriber/CreateSubscription")(
            api.Subscription.serialize(api.Subscription(name=subscription, topic=topic)),
            timeout=30,
        )


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--serve-canned", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_canned:
        serve_canned()
        return
    found = measure(arguments.messages)
    for name, value in found.items():
        print(f"{name:32} {value:14,.0f}")
    for name in ("publish", "publish, cold", "delivery", "delivery with acks"):
        ceiling = found["ceiling publish" if "publish" in name else "ceiling delivery"]
        print(f"{name + ' / ceiling':32} {found[name] / ceiling:14.0%}")


if __name__ == "__main__":
    main()
