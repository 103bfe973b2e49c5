"""StreamingPull: one open stream; runs in the emulator's event loop.

Two tasks share a stream: the reader applies the client's acknowledgements, the writer leases and
sends, and ends the stream. Both run in one loop, so state needs no lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pyarrow as pa
from google.pubsub_v1.types import pubsub as api

from penstock.emulator.pubsub import acks, wire
from penstock.emulator.pubsub.backlog import StreamLoad
from penstock.emulator.pubsub.iam import check_permission
from penstock.emulator.pubsub.resources import Subscription
from penstock.emulator.pubsub.rpc import Code, RpcError, invalid, not_found
from penstock.emulator.pubsub.store import RESPONSE_BYTES, RESPONSE_MESSAGES, Store

_METHOD = "StreamingPull"
# How often an idle stream looks for a fault that would cut it; only while faults are in force.
_FAULT_POLL_SECONDS = 0.02
# No injected fault ends a stream sooner. The official client, if its stream fails within a
# millisecond, which no network does, opens two new ones and never reads from the second.
SHORTEST_SECONDS = 0.05
_OPENING_ONLY = (
    "subscription",
    "max_outstanding_messages",
    "max_outstanding_bytes",
    "protocol_version",
)


class PullStream:
    """One client's stream on one subscription."""

    def __init__(self, store: Store, requests: AsyncIterator[bytes], context: Any) -> None:
        self._store = store
        self._requests = requests
        self._context = context
        self._wake = asyncio.Event()
        self._confirmations: deque[bytes] = deque()
        self._id = store.new_stream()
        self._load = StreamLoad()
        self._opened = store.clock.monotonic()
        self._may_fail_from = asyncio.get_running_loop().time() + SHORTEST_SECONDS
        self._deadline_seconds = 10
        self._most_messages = 0
        self._most_bytes = 0

    async def run(self) -> None:
        """Serve the stream until the client goes away, or an error ends it."""
        try:
            first = await anext(self._requests)
        except StopAsyncIteration:
            raise invalid("subscription", "the stream ended before its first request") from None
        subscription = self._open(first)
        subscription.backlog.loads[self._id] = self._load
        subscription.waiters.append(self._wake)
        reader = asyncio.create_task(self._read(subscription))
        reader.add_done_callback(lambda _: self._wake.set())
        try:
            await self._write(subscription, reader)
        finally:
            reader.cancel()
            subscription.waiters.remove(self._wake)
            subscription.backlog.close_stream(self._id)
            await asyncio.gather(reader, return_exceptions=True)

    def _open(self, payload: bytes) -> Subscription:
        acks.check_size(payload)
        request = wire.parse(api.StreamingPullRequest.pb(), payload)
        if not request.subscription:
            raise invalid("subscription", "the first request of a stream has to name it")
        subscription = self._store.pullable(request.subscription)
        self._set_deadline(request.stream_ack_deadline_seconds)
        self._most_messages = request.max_outstanding_messages
        self._most_bytes = request.max_outstanding_bytes
        self._apply(subscription, wire.decode("StreamingPullRequest", payload))
        return subscription

    def _set_deadline(self, seconds: int) -> None:
        if not 10 <= seconds <= 600:
            raise invalid("stream_ack_deadline_seconds", f"{seconds} is not between 10 and 600")
        self._deadline_seconds = seconds

    async def _read(self, subscription: Subscription) -> None:
        async for payload in self._requests:
            acks.check_size(payload)
            request = wire.decode("StreamingPullRequest", payload)
            for name in _OPENING_ONLY:
                if request[name][0].as_py():
                    raise invalid(name, "is for the first request of a stream only")
            seconds = request["stream_ack_deadline_seconds"][0].as_py()
            if seconds:
                self._set_deadline(seconds)
            subscription.last_used = self._store.clock.time()
            self._apply(subscription, request)

    def _apply(self, subscription: Subscription, request: dict[str, Any]) -> None:
        acked: pa.StringArray = request["ack_ids"].flatten()
        if len(acked):
            outcome = acks.acknowledge(self._store, subscription, acked, _METHOD)
            self._confirm(subscription, outcome, "AcknowledgeConfirmation", 0x2A)
        modified: pa.StringArray = request["modify_deadline_ack_ids"].flatten()
        seconds = request["modify_deadline_seconds"].flatten().to_numpy()
        if len(modified) != len(seconds):
            raise invalid(
                "modify_deadline_seconds",
                f"{len(seconds)} values for {len(modified)} modify_deadline_ack_ids",
            )
        if len(modified):
            seconds = seconds.astype(np.int32)
            outcome = acks.modify_deadline(self._store, subscription, modified, seconds, _METHOD)
            self._confirm(subscription, outcome, "ModifyAckDeadlineConfirmation", 0x1A)

    def _confirm(
        self, subscription: Subscription, outcome: acks.AckOutcome, message_name: str, tag: int
    ) -> None:
        if subscription.is_exactly_once:
            body = outcome.confirmation(message_name)
            self._confirmations.append(bytes([tag]) + wire.length_prefix(body) + body)
            self._wake.set()

    async def _write(self, subscription: Subscription, reader: asyncio.Task[None]) -> None:
        told = None
        while True:
            self._wake.clear()
            # Here and not in the middle of a write: gRPC cannot end a call that is writing.
            if reader.done():
                # Also when the client has only closed its sending side; what it asked is answered.
                reader.result()
                if self._confirmations:
                    await self._context.write(b"".join(self._confirmations))
                return
            if subscription.is_deleted:
                raise not_found(subscription.name)
            if self._store.denied:
                check_permission(self._store, _METHOD)
            self._store.pullable(subscription.name)
            properties = _properties(subscription)
            response = b"".join(self._confirmations)
            self._confirmations.clear()
            response += self._lease(subscription)
            if self._store.faults:
                self._maybe_cut()
            # The service repeats the properties in every response; a change reaches idle clients.
            if response or told != properties:
                told = properties
                await self._context.write(response + properties)
            else:
                await self._wait()

    def _lease(self, subscription: Subscription) -> bytes:
        messages, size = RESPONSE_MESSAGES, RESPONSE_BYTES
        if self._most_messages > 0:
            messages = min(messages, self._most_messages - self._load.messages)
        if self._most_bytes > 0:
            size = min(size, self._most_bytes - self._load.size)
        if messages <= 0 or size <= 0:
            return b""
        return self._store.lease(subscription, self._id, self._deadline_seconds, messages, size)

    def _maybe_cut(self) -> None:
        if asyncio.get_running_loop().time() < self._may_fail_from:
            return
        age = self._store.clock.monotonic() - self._opened
        fault = self._store.faults.draw("cut", _METHOD, age)
        if fault is not None:
            raise RpcError(Code[fault.code], fault.message)

    async def _wait(self) -> None:
        if not self._store.faults:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(_FAULT_POLL_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            pass


def _properties(subscription: Subscription) -> bytes:
    """Encode subscription_properties (field 4)."""
    settings = subscription.settings
    body = b""
    if settings.enable_exactly_once_delivery:
        body += b"\x08\x01"
    if settings.enable_message_ordering:
        body += b"\x10\x01"
    return b"\x22" + bytes([len(body)]) + body
