"""The agent's link to the coordinator; runs in the agent.

One bidirectional stream, opened again when it breaks. What the coordinator must know before a task
goes on (a delivery, its end) is asked and answered; everything else is told. A link that stays down
for `silence_seconds` means that the query is gone.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from penstock.errors import ConnectError, WireError
from penstock.pubsub.agent import protocol
from penstock.retry import Backoff

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class LinkEvents:
    """What the agent does when something happens on the link; called in the link's thread."""

    on_order: Callable[[protocol.Order], None]
    on_release: Callable[[protocol.Release], None]
    on_suspect: Callable[[protocol.Suspect], None]
    on_open: Callable[[], None]
    on_lost: Callable[[], None]


class Link:
    """Talks to the coordinator. All methods are safe from any thread."""

    def __init__(
        self,
        address: str,
        token: str,
        hello: protocol.Hello,
        events: LinkEvents,
        silence_seconds: float,
    ) -> None:
        self._hello = hello
        self._token = token
        self._events = events
        self._silence_seconds = silence_seconds
        self._channel = grpc.insecure_channel(
            address,
            [
                ("grpc.max_receive_message_length", protocol.MAX_MESSAGE_BYTES),
                # A driver machine that vanishes sends no farewell.
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1_000),
            ],
        )
        # Protects the three below; outbox and answers are renewed with every connection.
        self._lock = threading.Lock()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # What was asked and not answered, with the payload: asked again on the next connection
        # if the link was not open yet.
        self._answers: dict[int, tuple[Future[Any], bytes]] = {}
        self._is_over = False
        self._asks = itertools.count(1)
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-link", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def stop(self) -> None:
        """Close the link, after what was told so far."""
        self.ended.set()
        self._outbox.put(None)
        self._thread.join(timeout=2.0)
        self._channel.close()

    def tell(self, message: Any) -> None:
        """Send a message; it is lost if the link breaks now."""
        self._outbox.put(protocol.encode(message))

    def ask_delivery(self, number: int, tick: int, index: int, attempt: int, rows: int) -> bool:
        """Announce a delivery; False if its batch is over.

        Raises:
            ConnectError: the coordinator does not answer.
        """
        make = partial(protocol.Deliver, number=number, tick=tick, index=index)
        return bool(self._ask(partial(make, attempt=attempt, rows=rows)))

    def ask_complete(self, number: int) -> bool:
        """Announce that a delivery was read to its end.

        Raises:
            ConnectError: the coordinator does not answer.
        """
        return bool(self._ask(partial(protocol.Complete, number=number)))

    def ask_claim(self, tick: int, index: int) -> protocol.Verdict:
        """Ask what to do for a task whose rows go through the spool.

        Raises:
            ConnectError: the coordinator does not answer.
        """
        return protocol.Verdict(self._ask(partial(protocol.Claim, tick=tick, index=index)))

    def ask_durable(self, tick: int, index: int, rows: int, size: int) -> protocol.Noted:
        """Announce an object that was written.

        Raises:
            ConnectError: the coordinator does not answer.
        """
        make = partial(protocol.Durable, tick=tick, index=index, rows=rows, size=size)
        return protocol.Noted(self._ask(make))

    def _ask(self, make: Callable[[int], Any]) -> Any:
        ask = next(self._asks)
        answer: Future[Any] = Future()
        payload = protocol.encode(make(ask))
        with self._lock:
            if self._is_over:
                answer.set_exception(ConnectionError("the link is closed"))
            self._answers[ask] = answer, payload
            # Between two connections nobody reads it; the next one begins with what is unanswered.
            self._outbox.put(payload)
        try:
            return answer.result(timeout=_ANSWER_SECONDS)
        except (TimeoutError, ConnectionError):
            raise ConnectError(
                "COORDINATOR",
                "The query's coordinator on the driver",
                "does not answer this executor's agent",
                "Check that executors can reach the driver machine on all ports; if the driver "
                "has several addresses, set coordinatorHost",
            ) from None
        finally:
            with self._lock:
                self._answers.pop(ask, None)

    def _run(self) -> None:
        backoff = Backoff(first_seconds=0.1, longest_seconds=1.0)
        last_heard = time.monotonic()
        attempt = 0
        while not self.ended.is_set():
            heard = self._connect_once()
            if heard is not None:
                last_heard, attempt = heard, 0
            if time.monotonic() - last_heard > self._silence_seconds:
                _LOG.warning("the coordinator has been silent for too long")
                break
            self.ended.wait(backoff.seconds(attempt))
            attempt += 1
        self.ended.set()
        with self._lock:
            self._is_over = True
        self._fail_asks()

    def _connect_once(self) -> float | None:
        """Serve one connection until it breaks; returns when it was last alive."""
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        outbox.put(protocol.encode(self._hello))
        with self._lock:
            for _, payload in self._answers.values():
                outbox.put(payload)
            self._outbox = outbox
        call = self._channel.stream_stream(protocol.LINK_METHOD)(
            self._outgoing(outbox), metadata=((protocol.TOKEN_KEY, self._token),)
        )
        is_open = False
        try:
            # The coordinator greets first, so one message shows that the link was open.
            for payload in call:
                message = protocol.decode(payload)
                self._receive(message)
                # The greeting. What has to be known before anything is pulled came before it.
                if not is_open and isinstance(message, protocol.Answer) and message.ask == 0:
                    is_open = True
                    self._events.on_open()
        except grpc.RpcError as exc:
            if exc.code() is grpc.StatusCode.UNAUTHENTICATED:
                self.ended.set()
        except WireError:
            _LOG.exception("the coordinator speaks another language")
            self.ended.set()
        finally:
            if is_open:
                self._events.on_lost()
            call.cancel()
            outbox.put(None)
            if is_open or self.ended.is_set():
                # The coordinator has forgotten us: nobody may rely on what was asked before.
                self._fail_asks()
        return time.monotonic() if is_open else None

    def _fail_asks(self) -> None:
        with self._lock:
            for answer, _ in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the link broke"))
            self._answers.clear()

    @staticmethod
    def _outgoing(outbox: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
        while (payload := outbox.get()) is not None:
            yield payload

    def _answered(self, ask: int, value: Any) -> None:
        with self._lock:
            answer, _ = self._answers.pop(ask, (None, b""))
        if answer is not None and not answer.done():
            answer.set_result(value)

    def _receive(self, message: Any) -> None:
        match message:
            case protocol.Answer():
                self._answered(message.ask, message.is_yes)
            case protocol.Decision():
                self._answered(message.ask, message.verdict)
            case protocol.Suspect():
                self._events.on_suspect(message)
            case protocol.Order():
                self._events.on_order(message)
            case protocol.Release():
                self._events.on_release(message)
            case protocol.Stop():
                self.ended.set()
            case _:
                raise WireError("LINK", "The coordinator", "sent what only agents send", "Report")
