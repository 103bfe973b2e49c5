"""What is ready, in flight and to be retried, and when all is stored; runs in workers.

The state of one task's publishing, without threads: its owner feeds it with rows and with the
outcomes of calls. Never drops a message; gives up when nothing is confirmed for flushTimeout.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConnectError, WireError
from penstock.pubsub.client import PUBLISH, Client
from penstock.pubsub.deadletter import letters_of_refused
from penstock.pubsub.encoding import decode_message_ids, encode_request
from penstock.pubsub.errors import CallFailed, Resource, service_error
from penstock.pubsub.options import PubSubSinkOptions
from penstock.pubsub.packing import Lane, Packer, Request
from penstock.pubsub.rows import Rows
from penstock.retry import Backoff, is_transient

Outcome = bytes | CallFailed


@dataclass
class PublishTotals:
    """What has been confirmed so far. `bytes` counts requests as encoded."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    dead_lettered: int = 0


class PublishEngine:
    """The state of one task's publishing. Not thread-safe; its owner calls it from one thread."""

    def __init__(
        self,
        client: Client,
        options: PubSubSinkOptions,
        done: Callable[[Request, Outcome], None],
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._done = done
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._packer = Packer(options.batch_rows, options.batch_bytes, options.linger)
        self._is_ending = False
        self._ready: deque[Request] = deque()
        # Requests behind the one of their ordered lane that is ready, in flight or to be retried.
        self._waiting: dict[Lane, deque[Request]] = {}
        self._in_flight: dict[Request, Callable[[], Any]] = {}
        self._retries: list[tuple[float, int, Request]] = []
        self._sequence = itertools.count()
        self._unconfirmed = 0
        self._progress_time = clock.monotonic()
        self._last_failure: CallFailed | None = None
        self.totals = PublishTotals()

    @property
    def is_idle(self) -> bool:
        """Whether every message that came in is confirmed."""
        return self._unconfirmed == 0 and self._packer.is_empty

    @property
    def backlog(self) -> int:
        """How many requests have not found a place in flight yet."""
        return self._unconfirmed - len(self._in_flight) - len(self._retries)

    def add(self, rows: Iterable[Rows]) -> None:
        """Take rows in; they are sent by the next `pump`."""
        now = self._clock.monotonic()
        for group in rows:
            for request in self._packer.add(group, now):
                self._enqueue(request)

    def end_input(self) -> None:
        """No more rows will come: nothing lingers from here on."""
        self._is_ending = True

    def pump(self) -> None:
        """Send what may be sent now.

        Raises:
            ConnectError: nothing was confirmed for as long as flushTimeout.
        """
        now = self._clock.monotonic()
        for request in self._packer.take_due(math.inf if self._is_ending else now):
            self._enqueue(request)
        while self._retries and self._retries[0][0] <= now:
            self._send(heapq.heappop(self._retries)[2])
        # A request that waits for its retry keeps its place: a storm is not fed with new requests.
        limit = self._options.max_in_flight_requests
        while self._ready and len(self._in_flight) + len(self._retries) < limit:
            self._send(self._ready.popleft())
        if self._unconfirmed and now >= self._progress_time + self._options.flush_timeout:
            raise self._timed_out()

    def seconds_to_next(self) -> float:
        """How long nothing will have to be done unless a call ends or rows come in."""
        moment = self._packer.next_due()
        if self._retries:
            moment = min(moment, self._retries[0][0])
        if self._unconfirmed:
            moment = min(moment, self._progress_time + self._options.flush_timeout)
        return max(0.0, moment - self._clock.monotonic())

    def handle(self, request: Request, outcome: Outcome) -> None:
        """Take in how a call ended.

        Raises:
            PenstockError: it failed for good, and so does the task.
        """
        del self._in_flight[request]
        if isinstance(outcome, bytes):
            self._confirm(request, outcome)
        elif is_transient(outcome.code):
            self._last_failure = outcome
            self.totals.retries += 1
            due = self._clock.monotonic() + self._backoff.seconds(request.attempts)
            request.attempts += 1
            # The lane stays blocked, so nothing of the same key overtakes the retry.
            heapq.heappush(self._retries, (due, next(self._sequence), request))
        elif self._can_bury(request, outcome):
            self._bury(request, outcome)
        else:
            raise service_error(outcome, Resource.topic(request.topic)) from outcome

    def abandon(self) -> None:
        """Cancel what is in flight; the task has failed."""
        for cancel in self._in_flight.values():
            cancel()

    def _enqueue(self, request: Request) -> None:
        if self._unconfirmed == 0:
            self._progress_time = self._clock.monotonic()
        self._unconfirmed += 1
        if request.is_ordered and request.lane in self._waiting:
            self._waiting[request.lane].append(request)
            return
        if request.is_ordered:
            self._waiting[request.lane] = deque()
        self._ready.append(request)

    def _send(self, request: Request) -> None:
        if request.payload is None:
            request.payload = encode_request(request.topic, request.messages)
        self._in_flight[request] = self._client.start(
            PUBLISH,
            request.topic,
            request.payload,
            # Half, so that a request the network swallowed is sent once more before the end.
            self._options.flush_timeout / 2,
            lambda outcome: self._done(request, outcome),
        )

    def _confirm(self, request: Request, payload: bytes) -> None:
        count, sent = len(decode_message_ids(payload)), request.messages.num_rows
        if count != sent:
            raise WireError(
                "WIRE",
                f"Topic '{request.topic}'",
                f"the service confirmed {count} messages of a request that carried {sent}",
                "Check that the endpoint is Pub/Sub; this task is not counted as written",
            )
        if request.topic == self._options.dead_letter:
            self.totals.dead_lettered += sent
        else:
            self.totals.messages += sent
        self.totals.requests += 1
        self.totals.bytes += len(request.payload or b"")
        self._release(request)

    def _release(self, request: Request) -> None:
        """The request is done with: the next of its lane may go."""
        self._unconfirmed -= 1
        self._progress_time = self._clock.monotonic()
        if not request.is_ordered:
            return
        waiting = self._waiting[request.lane]
        if waiting:
            self._ready.append(waiting.popleft())
        else:
            del self._waiting[request.lane]

    def _can_bury(self, request: Request, failure: CallFailed) -> bool:
        dead_letter = self._options.dead_letter
        is_refused = failure.code == "INVALID_ARGUMENT"
        return is_refused and dead_letter is not None and request.topic != dead_letter

    def _bury(self, request: Request, failure: CallFailed) -> None:
        """Search the refused request for the message that is to blame, and put that one aside."""
        if request.messages.num_rows == 1:
            letters = letters_of_refused(
                request.messages, request.topic, failure.details, self._options.dead_letter or ""
            )
            self.add([letters])
            self._release(request)
            return
        first, second = request.halves()
        self._unconfirmed += 1
        self._progress_time = self._clock.monotonic()
        if request.is_ordered:
            self._waiting[request.lane].appendleft(second)
        else:
            self._ready.appendleft(second)
        self._ready.appendleft(first)

    def _timed_out(self) -> ConnectError:
        stuck = [*self._in_flight, *(entry[2] for entry in self._retries), *self._ready]
        last = self._last_failure
        answer = f"the last answer was {last.code}: {last.details}" if last else "no answer came"
        return ConnectError(
            "FLUSH_TIMEOUT",
            f"Topic '{stuck[0].topic}'" if stuck else "Pub/Sub",
            f"no request was confirmed for {self._options.flush_timeout:g}s, "
            f"{self._unconfirmed} are unconfirmed, {answer.rstrip('. ')}",
            "Check the network between the executors and the endpoint. If it is only slow, raise "
            "flushTimeout, or lower batchBytes or maxInFlightRequests",
        )
