"""Publishes a task's rows and waits for all of them to be stored; runs in workers, one per task.

Gives a `PublishEngine` a thread of its own, so that confirmations and retries go on while Spark
computes the next rows. Never waits without a bound: the engine has one.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.pubsub.client import Client
from penstock.pubsub.engine import Outcome, PublishEngine, PublishTotals
from penstock.pubsub.options import PubSubSinkOptions
from penstock.pubsub.packing import Request
from penstock.pubsub.rows import Rows
from penstock.retry import Backoff


class Publisher:
    """A `PublishEngine` in a thread of its own."""

    def __init__(
        self,
        client: Client,
        options: PubSubSinkOptions,
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff | None = None,
    ) -> None:
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._engine = PublishEngine(client, options, self._post_done, clock, backoff)
        self._most_backlog = options.max_in_flight_requests
        # Protects what a caller of `submit` waits on: batches that the thread has not seen,
        # requests that are not sent, and the thread's end.
        self._state = threading.Condition()
        self._unseen = 0
        self._backlog = 0
        self._is_over = False
        self._failure: BaseException | None = None
        # Only the thread uses the rest.
        self._taken = 0
        self._is_ending = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-publish", daemon=True)
        self._thread.start()

    def submit(self, rows: list[Rows]) -> None:
        """Hand rows over; waits while too many wait already.

        Raises:
            PenstockError: publishing has failed.
        """
        with self._state:
            self._state.wait_for(
                lambda: self._is_over or (self._unseen == 0 and self._backlog < self._most_backlog)
            )
            self._raise_failure()
            if self._is_over:
                raise RuntimeError("this publisher has been flushed or closed")
            self._unseen += 1
        self._events.put(lambda: self._add(rows))

    def flush(self) -> PublishTotals:
        """Wait until every message is confirmed; no rows may follow.

        Raises:
            PenstockError: publishing has failed.
        """
        self._events.put(self._end)
        # Bounded: the thread gives up when nothing is confirmed for flushTimeout.
        self._thread.join()
        self._raise_failure()
        return self._engine.totals

    def close(self) -> None:
        """Give up what is not confirmed, and end the thread. After `flush` there is nothing."""
        self._events.put(self._stop)
        self._thread.join(timeout=10.0)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _post_done(self, request: Request, outcome: Outcome) -> None:
        self._events.put(lambda: self._engine.handle(request, outcome))

    def _add(self, rows: list[Rows]) -> None:
        self._engine.add(rows)
        self._taken += 1

    def _end(self) -> None:
        self._is_ending = True
        self._engine.end_input()

    def _stop(self) -> None:
        self._is_closed = True

    def _run(self) -> None:
        try:
            while not (self._is_closed or (self._is_ending and self._engine.is_idle)):
                self._take_events()
                self._engine.pump()
                with self._state:
                    self._unseen -= self._taken
                    self._taken = 0
                    self._backlog = self._engine.backlog
                    self._state.notify_all()
        except BaseException as exc:
            # Whatever it is, it is raised again in the caller's thread.
            self._failure = exc
        finally:
            self._engine.abandon()
            with self._state:
                self._is_over = True
                self._state.notify_all()

    def _take_events(self) -> None:
        """Handle what has happened, waiting for the first thing if nothing has."""
        seconds = self._engine.seconds_to_next()
        try:
            self._events.get(timeout=None if math.isinf(seconds) else seconds)()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            return
