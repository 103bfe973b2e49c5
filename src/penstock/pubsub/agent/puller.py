"""Pulls messages into the reservoir over StreamingPull; runs in the agent, one thread a stream.

A stream that ends with a passing error is opened again after a jittered wait; one that is refused
for good ends the agent. Reading pauses while the reservoir is full, which stops the sender.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock._core.clock import Clock
from penstock.errors import PenstockError
from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.client import PubSubClient
from penstock.pubsub.encoding import decode_streaming_pull
from penstock.pubsub.errors import CallFailed, Resource, service_error
from penstock.retry import Backoff, is_transient

_LOG = logging.getLogger(__name__)
# Reading pauses at the limit and goes on at four fifths of it, so that it does not flutter.
_RESUME_AT = 0.8
_PAUSE_POLL_SECONDS = 0.02
# The service drops a stream on which the client has been silent for a minute.
_HEARTBEAT_SECONDS = 25.0
# A stream that was open for so long has not failed to open.
_SOUND_SECONDS = 60.0


@dataclass
class PullCounters:
    """What came in, in messages; written by one thread, read by any."""

    received: int = 0
    redelivered: int = 0
    backoffs: int = 0
    is_open: bool = False
    last_message_at: float = 0.0


@dataclass(frozen=True)
class PullLimits:
    """How much one stream may have outstanding, and the agent may buffer."""

    lease_seconds: int
    outstanding_rows: int
    outstanding_bytes: int
    buffered_bytes: int


class Puller:
    """One stream."""

    def __init__(
        self,
        client: PubSubClient,
        subscription: str,
        client_id: str,
        reservoir: Reservoir,
        limits: PullLimits,
        clock: Clock,
        on_message: Callable[[], None],
        on_fatal: Callable[[PenstockError], None],
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._client_id = client_id
        self._reservoir = reservoir
        self._limits = limits
        self._clock = clock
        self._on_message = on_message
        self._on_fatal = on_fatal
        self._backoff = Backoff(first_seconds=0.1, longest_seconds=30.0)
        self._ended = threading.Event()
        self._cancel: Callable[[], object] = lambda: None
        self.counters = PullCounters(last_message_at=clock.monotonic())
        self._thread = threading.Thread(target=self._run, name="penstock-pull", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the stream."""
        self._ended.set()
        self._cancel()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        attempt = 0
        while not self._ended.is_set():
            before = self.counters.received
            began = self._clock.monotonic()
            try:
                self._pull_once()
            except CallFailed as failure:
                if self._ended.is_set():
                    return
                if not is_transient(failure.code):
                    error = service_error(failure, Resource.subscription(self._subscription))
                    self._on_fatal(error)
                    return
                _LOG.info("stream ended: %s %s", failure.code, failure.details)
            except PenstockError as error:
                self._on_fatal(error)
                return
            finally:
                self.counters.is_open = False
            # The service ends idle streams from time to time; that is no reason to wait longer.
            lived = self._clock.monotonic() - began
            is_sound = self.counters.received > before or lived > _SOUND_SECONDS
            attempt = 0 if is_sound else attempt + 1
            self.counters.backoffs += 1
            self._ended.wait(self._backoff.seconds(attempt))

    def _pull_once(self) -> None:
        silence: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        responses, self._cancel = self._client.stream_pull(
            self._subscription, self._requests(silence)
        )
        try:
            for payload in responses:
                if not self.counters.is_open:
                    # Quiet is counted from here: a stream that was not open has told nothing.
                    self.counters.last_message_at = self._clock.monotonic()
                    self.counters.is_open = True
                self._take(payload)
                self._pause_while_full()
        finally:
            silence.put(None)
            self._cancel()

    def _requests(self, silence: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
        limits = self._limits
        yield encode_opening(
            self._subscription,
            self._client_id,
            limits.lease_seconds,
            limits.outstanding_rows,
            limits.outstanding_bytes,
        )
        while True:
            try:
                silence.get(timeout=_HEARTBEAT_SECONDS)
            except queue.Empty:
                # An empty request is a sign of life.
                yield b""
            else:
                return

    def _take(self, payload: bytes) -> None:
        received = decode_streaming_pull(payload)
        count = len(received.ack_ids)
        if not count:
            return
        now = self._clock.monotonic()
        usable = self._reservoir.put(received, now, now + self._limits.lease_seconds)
        self.counters.received += count
        self.counters.redelivered += _redelivered(received.rows.column("delivery_attempt"))
        if usable:
            self.counters.last_message_at = now
            self._on_message()

    def _pause_while_full(self) -> None:
        limit = self._limits.buffered_bytes
        if self._reservoir.buffered_bytes < limit:
            return
        while not self._ended.is_set():
            if self._reservoir.buffered_bytes < limit * _RESUME_AT:
                return
            self._ended.wait(_PAUSE_POLL_SECONDS)


def _redelivered(attempts: pa.Array) -> int:
    return int(pc.sum(pc.greater(attempts, 1)).as_py() or 0)


def encode_opening(
    subscription: str, client_id: str, lease_seconds: int, rows: int, size: int
) -> bytes:
    """Encode the first request of a stream."""
    from penstock.pubsub.protos import message_class

    request = message_class("StreamingPullRequest")(
        subscription=subscription,
        client_id=client_id,
        stream_ack_deadline_seconds=lease_seconds,
        max_outstanding_messages=rows,
        max_outstanding_bytes=size,
    )
    encoded: bytes = request.SerializeToString()
    return encoded
