"""Pulls messages into the reservoir over StreamingPull; runs in the agent, on an event loop.

All streams of an agent share one thread. A stream that ends with a passing error is opened again
after a jittered wait; one that is refused for good ends the agent. Reading stops while the
reservoir is full, which stops the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import AgentError, PenstockError
from penstock.pubsub.agent.pulse import Pulse
from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.client import PullStream, StreamConnection
from penstock.pubsub.encoding import Received, decode_streaming_pull
from penstock.pubsub.errors import CallFailed, Resource, service_error
from penstock.pubsub.options import PubSubConnectionOptions
from penstock.retry import Backoff, is_transient

_LOG = logging.getLogger(__name__)
# Reading stops at the limit and goes on at four fifths of it, so that it does not flutter.
_RESUME_AT = 0.8
# The service drops a stream on which the client has been silent for a minute.
_HEARTBEAT_SECONDS = 25.0
# A stream that was open for so long has not failed to open.
_SOUND_SECONDS = 60.0
# A stream that we close may still deliver for so long; what it delivers is handed back. Cancelled
# at once, its last responses would be nobody's until their leases end.
_FAREWELL_SECONDS = 1.0
# Why streams are closed after a standstill.
_STOOD_STILL = "stood still"


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
    """How much one stream may have outstanding, and the agent may hold."""

    lease_seconds: int
    outstanding_rows: int
    outstanding_bytes: int
    held_bytes: int


class Gate:
    """Whether streams may be open; closed for any of several reasons. Belongs to the loop."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self.is_ended = False
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.opened.set()

    def close(self, reason: str) -> None:
        """Close all streams."""
        self._reasons.add(reason)
        self.opened.clear()
        self.closed.set()

    def open(self, reason: str) -> None:
        """Take a reason back."""
        self._reasons.discard(reason)
        if not self._reasons and not self.is_ended:
            self.closed.clear()
            self.opened.set()

    def end(self) -> None:
        """Close all streams for good."""
        self.is_ended = True
        self.closed.set()
        # Whoever waits for the gate shall look again.
        self.opened.set()


class Puller:
    """One stream, opened again and again."""

    def __init__(
        self,
        subscription: str,
        client_id: str,
        reservoir: Reservoir,
        limits: PullLimits,
        clock: Clock,
        on_message: Callable[[], None],
        on_fatal: Callable[[PenstockError], None],
        screen: Callable[[Received], Received] = lambda received: received,
    ) -> None:
        self._screen = screen
        self._subscription = subscription
        self._client_id = client_id
        self._reservoir = reservoir
        self._limits = limits
        self._clock = clock
        self._on_message = on_message
        self._on_fatal = on_fatal
        self._backoff = Backoff(first_seconds=0.1, longest_seconds=30.0)
        self.counters = PullCounters(last_message_at=clock.monotonic())

    async def run(
        self, connection: StreamConnection, gate: Gate, has_room: asyncio.Event, pulse: Pulse
    ) -> None:
        """Pull until the gate is closed for good, or the service refuses for good."""
        attempt = 0
        while True:
            await gate.opened.wait()
            if gate.is_ended:
                return
            before = self.counters.received
            began = self._clock.monotonic()
            try:
                stream = connection.open(self._subscription)
                await self._pull_once(stream, gate, has_room, pulse)
            except CallFailed as failure:
                if not is_transient(failure.code) and not gate.closed.is_set():
                    resource = Resource.subscription(self._subscription)
                    self._on_fatal(service_error(failure, resource))
                    return
                _LOG.info("stream ended: %s %s", failure.code, failure.details)
            except PenstockError as error:
                self._on_fatal(error)
                return
            finally:
                self.counters.is_open = False
            if gate.closed.is_set():
                continue
            # The service ends idle streams from time to time; that is no reason to wait longer.
            lived = self._clock.monotonic() - began
            is_sound = self.counters.received > before or lived > _SOUND_SECONDS
            attempt = 0 if is_sound else attempt + 1
            self.counters.backoffs += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.seconds(attempt)):
                    await gate.closed.wait()

    async def _pull_once(
        self, stream: PullStream, gate: Gate, has_room: asyncio.Event, pulse: Pulse
    ) -> None:
        limits = self._limits
        began = self._clock.monotonic()
        await stream.send(
            encode_opening(
                self._subscription,
                self._client_id,
                limits.lease_seconds,
                limits.outstanding_rows,
                limits.outstanding_bytes,
            )
        )
        companions = [
            asyncio.create_task(_keep_alive(stream)),
            asyncio.create_task(_close_with(gate, stream)),
        ]
        try:
            while (payload := await stream.read()) is not None:
                if not self.counters.is_open:
                    # Quiet is counted from here: a stream that was not open has told nothing.
                    self.counters.last_message_at = self._clock.monotonic()
                    self.counters.is_open = True
                self._take(payload, is_timely=pulse.is_sound_since(began))
                if self._reservoir.total_bytes < limits.held_bytes:
                    continue
                full_at = self._clock.monotonic()
                await self._wait_for_room(gate, has_room)
                if self._clock.monotonic() - full_at > pulse.longest_seconds:
                    # As if we had stood still: the rest of this stream has waited for too long.
                    began = float("-inf")
                    companions.append(asyncio.create_task(_close(stream)))
        finally:
            for companion in companions:
                companion.cancel()
            stream.cancel()

    async def _wait_for_room(self, gate: Gate, has_room: asyncio.Event) -> None:
        enough = self._limits.held_bytes * _RESUME_AT
        while self._reservoir.total_bytes >= enough and not gate.closed.is_set():
            has_room.clear()
            await has_room.wait()

    def _take(self, payload: bytes, *, is_timely: bool) -> None:
        received = decode_streaming_pull(payload)
        count = len(received.ack_ids)
        if not count:
            return
        self.counters.received += count
        self.counters.redelivered += _redelivered(received.rows.column("delivery_attempt"))
        now = self._clock.monotonic()
        passed = self._screen(received)
        # What may be with another agent by now is forgotten, like all that is not prolonged.
        # And a response may have been on its way for as long as a standstill is not noticed.
        leased_until = now + 0.9 * self._limits.lease_seconds if is_timely else now
        usable = self._reservoir.put(passed, now, leased_until)
        if usable:
            self.counters.last_message_at = now
            self._on_message()


async def _keep_alive(stream: PullStream) -> None:
    while True:
        await asyncio.sleep(_HEARTBEAT_SECONDS)
        # An empty request is a sign of life.
        await stream.send(b"")


async def _close_with(gate: Gate, stream: PullStream) -> None:
    await gate.closed.wait()
    await _close(stream)


async def _close(stream: PullStream) -> None:
    await stream.close_sending()
    await asyncio.sleep(_FAREWELL_SECONDS)
    stream.cancel()


class PullerThread:
    """All streams of one agent, on an event loop in a thread. Safe from any thread."""

    def __init__(
        self,
        options: PubSubConnectionOptions,
        pullers: list[Puller],
        on_fatal: Callable[[PenstockError], None],
        clock: Clock = SYSTEM_CLOCK,
        standstill_seconds: float = 6.0,
    ) -> None:
        self._options = options
        self._pullers = pullers
        self._on_fatal = on_fatal
        self._loop = asyncio.new_event_loop()
        self._gate = Gate()
        self._has_room = asyncio.Event()
        self._pulse = Pulse(clock, standstill_seconds, self._reopen)
        self._thread = threading.Thread(target=self._run, name="penstock-pull", daemon=True)

    @property
    def counters(self) -> list[PullCounters]:
        """What each stream has counted."""
        return [puller.counters for puller in self._pullers]

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, reason: str, seconds: float | None = None) -> None:
        """Close the streams until `open` takes the reason back, or the time is over."""

        def act() -> None:
            self._gate.close(reason)
            self._has_room.set()
            if seconds is not None:
                self._loop.call_later(seconds, self._gate.open, reason)

        self._call(act)

    def open(self, reason: str) -> None:
        """Take a reason back; without any, the streams are opened again."""
        self._call(lambda: self._gate.open(reason))

    def _reopen(self) -> None:
        """Have new streams after a standstill; in the loop."""
        _LOG.warning("this process stood still; opening new streams")
        self._gate.close(_STOOD_STILL)
        self._loop.call_later(2 * _FAREWELL_SECONDS, self._gate.open, _STOOD_STILL)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._pulse.longest_seconds / 4)
            self._pulse.beat()

    def notice_room(self) -> None:
        """Memory was given back: look again whether there is room."""
        self._call(self._has_room.set)

    def stop(self) -> None:
        """Close the streams for good, after what is on its way."""

        def act() -> None:
            self._gate.end()
            self._has_room.set()

        self._call(act)
        if self._thread.is_alive():
            self._thread.join(timeout=_FAREWELL_SECONDS + 4.0)

    def _call(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            # The loop is closed when all streams have ended.
            self._loop.call_soon_threadsafe(act)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._pull())
        except Exception:
            # Never silently: the query would wait for messages for ever.
            _LOG.exception("pulling has failed")
            self._on_fatal(
                AgentError(
                    "AGENT_PULL",
                    "The Pub/Sub agent",
                    "has failed in a way that it does not know",
                    "Report this, with the traceback in the agent's log",
                )
            )

    async def _pull(self) -> None:
        connection = StreamConnection(self._options)
        self._pulse.beat()
        beating = asyncio.create_task(self._beat())
        try:
            async with asyncio.TaskGroup() as group:
                for puller in self._pullers:
                    group.create_task(
                        puller.run(connection, self._gate, self._has_room, self._pulse)
                    )
        finally:
            beating.cancel()
            await connection.close()


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
