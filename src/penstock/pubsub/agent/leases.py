"""Extends leases, acknowledges and hands back; runs in the agent, in threads of its own.

Every request stays below the service's 512 KiB. Ack ids travel as Arrow columns.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock._core.clock import Clock
from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.client import ACKNOWLEDGE, MODIFY_ACK_DEADLINE, Client, Method
from penstock.pubsub.encoding import byte_lengths, cut_points, encode
from penstock.pubsub.errors import CallFailed
from penstock.pubsub.spool.format import SpoolKey
from penstock.retry import Backoff, is_transient

_LOG = logging.getLogger(__name__)
# The service refuses requests over 524,288 bytes.
_REQUEST_BYTES = 500_000
_REQUEST_IDS = 2500
_CALL_SECONDS = 10.0
# An ack that fails so often is given up: the lease ends, and the message comes again.
_ATTEMPTS = 8
# Requests of one kind that are under way at the same time; over a network one waits for the other.
_AT_ONCE = 4


@dataclass
class LeaseCounters:
    """What was done, in messages; read by any thread."""

    acked: int = 0
    nacked: int = 0
    dropped: int = 0
    failures: int = 0
    backoffs: int = 0


class AckSender:
    """Sends acknowledgements and lease changes, cut into requests that the service takes."""

    def __init__(self, client: Client, subscription: str, clock: Clock) -> None:
        self._client = client
        self._subscription = subscription
        self.clock = clock
        self._backoff = Backoff(longest_seconds=5.0)
        # Apart, so that acks that have to be repeated do not hold up the leases.
        self._pools = {
            method: ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-send")
            for method in (ACKNOWLEDGE, MODIFY_ACK_DEADLINE)
        }
        self._give_up_at: float | None = None
        # Protects the counters.
        self._lock = threading.Lock()
        self.counters = LeaseCounters()

    def give_up_in(self, seconds: float) -> None:
        """From now on nothing is sent later than that: the process is ending."""
        self._give_up_at = self.clock.monotonic() + seconds

    def acknowledge(self, ack_ids: list[pa.StringArray]) -> int:
        """Acknowledge; returns how many messages the service has confirmed."""
        done = self._send(ack_ids, ACKNOWLEDGE, {})
        self.counters.acked += done
        return done

    def drop(self, ack_ids: list[pa.StringArray]) -> int:
        """Acknowledge messages that no task shall get; returns how many are confirmed."""
        done = self._send(ack_ids, ACKNOWLEDGE, {})
        self.counters.dropped += done
        return done

    def hand_back(self, ack_ids: list[pa.StringArray]) -> int:
        """Nack: the service delivers the messages again at once."""
        done = self._send(ack_ids, MODIFY_ACK_DEADLINE, {"ack_deadline_seconds": 0})
        self.counters.nacked += done
        return done

    def extend(self, ack_ids: list[pa.StringArray], seconds: int) -> list[bool]:
        """Prolong leases; tells for each array whether the service has taken all of it."""
        refused = self._send_parts(ack_ids, MODIFY_ACK_DEADLINE, {"ack_deadline_seconds": seconds})
        ends = np.cumsum([len(part) for part in ack_ids]).tolist()
        return [
            not any(start < end and stop > end - len(part) for start, stop, _ in refused)
            for part, end in zip(ack_ids, ends, strict=True)
        ]

    def _send(self, ack_ids: list[pa.StringArray], method: Method, extra: dict[str, int]) -> int:
        failed = sum(count for _, _, count in self._send_parts(ack_ids, method, extra))
        return sum(map(len, ack_ids)) - failed

    def _send_parts(
        self, ack_ids: list[pa.StringArray], method: Method, extra: dict[str, int]
    ) -> list[tuple[int, int, int]]:
        """Send everything; gives start, end and number of the ids that failed, for each request."""
        ids = [part for part in ack_ids if len(part)]
        if not ids:
            return []
        joined = ids[0] if len(ids) == 1 else pa.concat_arrays(ids)
        # Each id has a tag and a length of up to three bytes before it.
        ends = cut_points(byte_lengths(joined) + 4, _REQUEST_IDS, _REQUEST_BYTES)
        cuts = list(zip([0, *ends], ends, strict=False))
        parts = [joined.slice(start, end - start) for start, end in cuts]
        failed = list(
            self._pools[method].map(lambda part: self._send_part(part, method, extra), parts)
        )
        with self._lock:
            self.counters.failures += sum(failed)
        return [(*cut, count) for cut, count in zip(cuts, failed, strict=True) if count]

    def _send_part(self, ack_ids: pa.StringArray, method: Method, extra: dict[str, int]) -> int:
        """Send one request until the service has taken it; returns how many ids failed."""
        failed = 0
        for attempt in range(_ATTEMPTS):
            seconds = self._at_most(_CALL_SECONDS)
            if seconds <= 0:
                break
            payload = self._encode(ack_ids, method, extra)
            try:
                self._client.call(method, self._subscription, payload, seconds)
            except CallFailed as failure:
                if failure.reasons:
                    ack_ids, refused = _divide(ack_ids, failure.reasons)
                    failed += refused
                elif not is_transient(failure.code):
                    _LOG.warning("%s failed: %s %s", method.path, failure.code, failure.details)
                    return failed + len(ack_ids)
                if not len(ack_ids):
                    return failed
                with self._lock:
                    self.counters.backoffs += 1
                self.clock.wait(max(0.0, self._at_most(self._backoff.seconds(attempt))))
            else:
                return failed
        return failed + len(ack_ids)

    def _at_most(self, seconds: float) -> float:
        if self._give_up_at is None:
            return seconds
        return min(seconds, self._give_up_at - self.clock.monotonic())

    def _encode(self, ack_ids: pa.StringArray, method: Method, extra: dict[str, int]) -> bytes:
        offsets = pa.array([0, len(ack_ids)], pa.int32())
        columns = {
            "subscription": pa.array([self._subscription]),
            **{name: pa.array([value], pa.int32()) for name, value in extra.items()},
            "ack_ids": pa.ListArray.from_arrays(offsets, ack_ids),
        }
        return encode(method.path.rsplit("/", 1)[1] + "Request", pa.record_batch(columns))


def _divide(ack_ids: pa.StringArray, reasons: dict[str, str]) -> tuple[pa.StringArray, int]:
    """Give the ids that are worth sending again, and the number of those that are not.

    The reasons come in metadata of a few KB, so that not every id that failed is named. Where ids
    failed for a moment, those that are not named are sent again too; an ack is safe to repeat.
    """
    lasting = [ack_id for ack_id, why in reasons.items() if why.startswith("PERMANENT_")]
    is_refused = pc.is_in(ack_ids, pa.array(lasting, pa.string()))
    refused = pc.sum(is_refused).as_py() or 0
    if len(lasting) == len(reasons):
        return ack_ids.slice(0, 0), refused
    return ack_ids.filter(pc.invert(is_refused)), refused


@dataclass(frozen=True)
class _Order:
    """Deliveries to acknowledge and to hand back, and messages that are in no delivery."""

    ack: list[int] = field(default_factory=list)
    nack: list[int] = field(default_factory=list)
    loose: list[pa.StringArray] = field(default_factory=list)


@dataclass(frozen=True)
class _ObjectOrder:
    """A delivery that is in the spool: to be acknowledged, and told of."""

    number: int
    key: SpoolKey
    rows: int


class OnObject(Protocol):
    """Told when an object's messages were acknowledged; sure if every one was confirmed."""

    def __call__(self, key: SpoolKey, *, is_sure: bool) -> None:
        """Take the news."""
        ...


@dataclass(frozen=True)
class _DropOrder:
    """Messages that were in the spool already: to be acknowledged."""

    ack_ids: list[pa.StringArray]


class Settler:
    """Carries out orders, one after the other."""

    def __init__(
        self,
        reservoir: Reservoir,
        sender: AckSender,
        on_settled: Callable[[list[int]], None],
        on_object: OnObject | None = None,
    ) -> None:
        self._reservoir = reservoir
        self._sender = sender
        self._on_settled = on_settled
        self._on_object = on_object
        self._orders: queue.SimpleQueue[_Order | _ObjectOrder | _DropOrder | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="penstock-settle", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def order(self, ack: list[int], nack: list[int]) -> None:
        """Queue an order for deliveries."""
        self._orders.put(_Order(ack, nack))

    def hand_back(self, ack_ids: list[pa.StringArray]) -> None:
        """Queue messages that no task has got."""
        self._orders.put(_Order(loose=ack_ids))

    def acknowledge_object(self, number: int, key: SpoolKey, rows: int) -> None:
        """Queue a delivery that is in the spool."""
        self._orders.put(_ObjectOrder(number, key, rows))

    def drop(self, ack_ids: list[pa.StringArray]) -> None:
        """Queue messages that are in the spool already: they are acknowledged."""
        if ack_ids:
            self._orders.put(_DropOrder(ack_ids))

    def stop(self) -> None:
        """Carry out what is queued, then end."""
        self._orders.put(None)
        self._thread.join(timeout=15.0)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            match order:
                case _Order():
                    self._settle(order)
                case _ObjectOrder():
                    self._acknowledge_object(order)
                case _DropOrder():
                    self._sender.drop(order.ack_ids)

    def _settle(self, order: _Order) -> None:
        find = self._reservoir.ack_ids
        self._sender.acknowledge([ids for number in order.ack for ids in find(number)])
        back = [ids for number in order.nack for ids in find(number)]
        self._sender.hand_back([*back, *order.loose])
        # Only now: until the service has taken it, the leases have to be prolonged.
        for number in (*order.ack, *order.nack):
            self._reservoir.settle(number)
        self._on_settled([*order.ack, *order.nack])

    def _acknowledge_object(self, order: _ObjectOrder) -> None:
        ids = self._reservoir.ack_ids(order.number)
        done = self._sender.acknowledge(ids)
        # The service also confirms what comes after the end of a lease, when the message may
        # already be on its way to another.
        is_timely = self._reservoir.is_leased(order.number, self._sender.clock.monotonic())
        self._reservoir.settle(order.number)
        self._on_settled([])
        if self._on_object is not None:
            self._on_object(order.key, is_sure=is_timely and done == order.rows)


class LeaseKeeper:
    """Prolongs every lease in time, however long a batch takes."""

    def __init__(
        self, reservoir: Reservoir, sender: AckSender, clock: Clock, lease_seconds: int
    ) -> None:
        self._reservoir = reservoir
        self._sender = sender
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join(timeout=15.0)

    def extend_due(self) -> None:
        """Prolong the leases that have less than half of their time left."""
        now = self._clock.monotonic()
        due = self._reservoir.due(now + self._lease_seconds / 2)
        if due:
            taken = self._sender.extend([piece.ack_ids for piece in due], self._lease_seconds)
            end = self._clock.monotonic()
            for piece, is_taken in zip(due, taken, strict=True):
                # The service silently takes what comes too late, and then it changes nothing.
                if is_taken and end <= piece.leased_until:
                    # From when the request was begun: the service counts from later.
                    piece.leased_until = now + self._lease_seconds

    def _run(self) -> None:
        # A lease is looked at several times in the half in which it is due.
        while not self._ended.wait(self._lease_seconds / 10):
            self.extend_due()
