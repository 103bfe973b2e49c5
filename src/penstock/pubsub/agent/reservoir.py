"""The messages that an agent holds: buffered, out with a task, or awaiting their batch's commit.

Pure but for its lock: no I/O, and time is a parameter. Whole Arrow batches go in and slices of them
come out; Python touches batches only. A delivery is kept until it is settled, so that a task that
runs again here, or a sink that computes its batch twice, gets the same messages again. Runs in the
agent; all methods are safe from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pubsub.encoding import Received


@dataclass
class Piece:
    """Consecutive messages of one response, with the end of their lease."""

    ack_ids: pa.StringArray
    leased_until: float
    received_at: float
    rows: pa.RecordBatch
    # Bytes in memory; the parts of a split piece add up to the whole.
    size: int

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.ack_ids)

    def part(self, mask: npt.NDArray[np.bool_]) -> Piece:
        """Keep some of the messages, in their order."""
        if mask.all():
            return self
        kept = pa.array(mask)
        size = self.size * int(mask.sum()) // max(1, self.count)
        return replace(
            self, ack_ids=self.ack_ids.filter(kept), rows=self.rows.filter(kept), size=size
        )

    def split(self, count: int) -> tuple[Piece, Piece]:
        """Cut it in two after `count` messages; nothing is copied."""
        size = self.size * count // self.count
        head = replace(
            self,
            ack_ids=self.ack_ids.slice(0, count),
            rows=self.rows.slice(0, count),
            size=size,
        )
        tail = replace(
            self,
            ack_ids=self.ack_ids.slice(count),
            rows=self.rows.slice(count),
            size=self.size - size,
        )
        return head, tail


@dataclass
class HeldDelivery:
    """The messages that one task of one batch has got, in their order."""

    number: int
    tick: int
    index: int
    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    # Reads that are under way, and whether one has come to its end.
    readers: int = 0
    was_read: bool = False


@dataclass(frozen=True)
class ReservoirState:
    """What the reservoir holds at one moment."""

    buffered_rows: int
    buffered_bytes: int
    held_rows: int
    oldest_at: float | None


class Reservoir:
    """The buffer, and the deliveries made from it."""

    def __init__(
        self,
        *,
        is_ordered: bool = False,
        cutoff_us: int | None = None,
        most_bytes_per_batch: int = 2**62,
    ) -> None:
        self._is_ordered = is_ordered
        self._most_bytes_per_batch = most_bytes_per_batch
        self._cutoff_us = cutoff_us
        # Protects all fields below, and the pieces they hold.
        self._lock = threading.Lock()
        self._buffer: deque[Piece] = deque()
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._held: dict[int, HeldDelivery] = {}
        # (tick, index) -> number, of all that is held.
        self._by_task: dict[tuple[int, int], int] = {}
        self._held_rows = 0
        self._held_bytes = 0
        self._next_number = 1
        # Messages that a drain does not hand out; held, so that they do not come again and again.
        self._later: list[Piece] = []
        # Of the newest tick: the share of each task, and which task has which ordering key.
        self._tick = 0
        self._share = 0
        self._key_index: dict[str, int] = {}

    def put(self, received: Received, now: float, leased_until: float) -> int:
        """Buffer the messages of one response; returns how many can be handed out."""
        rows = received.rows
        size = int(rows.nbytes + received.ack_ids.nbytes)
        piece = Piece(received.ack_ids, leased_until, now, rows, size)
        later: Piece | None = None
        if self._cutoff_us is not None:
            times = rows.column("publish_time").cast(pa.int64())
            is_early = pc.less(times, self._cutoff_us).to_numpy(zero_copy_only=False)
            piece, later = piece.part(is_early), piece.part(~is_early)
        with self._lock:
            if later is not None and later.count:
                self._later.append(later)
            if piece.count:
                self._buffer.append(piece)
                self._buffered_rows += piece.count
                self._buffered_bytes += piece.size
        return piece.count

    def take(
        self, tick: int, index: int, most_rows: int, most_bytes: int, tasks: int
    ) -> HeldDelivery:
        """Hand out a task's share of what is buffered, oldest first; may be empty.

        A task that was here before gets what it got then. The share is fixed by the first fetch of
        a tick: `tasks` tasks of it are expected here, and the first to come must not take
        everything.
        """
        with self._lock:
            known = self._by_task.get((tick, index))
            if known is not None:
                self._held[known].readers += 1
                return self._held[known]
            if tick != self._tick:
                self._begin_tick(tick, tasks)
            most_rows = min(most_rows, self._share)
            delivery = HeldDelivery(self._next_number, tick, index, readers=1)
            self._next_number += 1
            passed: list[Piece] = []
            rows = size = 0
            while self._buffer and rows < most_rows and size < most_bytes:
                piece = self._buffer.popleft()
                if self._is_ordered:
                    piece, others = self._own_keys(piece, index)
                    if others.count:
                        passed.append(others)
                    if not piece.count:
                        continue
                count = min(piece.count, most_rows - rows)
                if size + piece.size > most_bytes:
                    # Messages of one response are taken to be of one size.
                    fitting = -(-(most_bytes - size) * piece.count // piece.size)
                    count = min(count, max(1, fitting))
                rest: Piece | None = None
                if count < piece.count:
                    piece, rest = piece.split(count)
                delivery.pieces.append(piece)
                rows += piece.count
                size += piece.size
                if rest is not None:
                    # Nothing that came after it may overtake it.
                    passed.append(rest)
                    break
            self._buffer.extendleft(reversed(passed))
            delivery.rows, delivery.size = rows, size
            self._buffered_rows -= rows
            self._buffered_bytes -= size
            self._held[delivery.number] = delivery
            self._by_task[tick, index] = delivery.number
            self._held_rows += rows
            self._held_bytes += size
            return delivery

    def _begin_tick(self, tick: int, tasks: int) -> None:
        rows, size = self._buffered_rows, self._buffered_bytes
        # A batch is held until the next one is planned: if it held all that we may hold, nothing
        # could be pulled in the meantime.
        if size > self._most_bytes_per_batch:
            rows = -(-rows * self._most_bytes_per_batch // size)
        self._tick = tick
        self._share = -(-rows // max(1, tasks))
        self._key_index = {}

    def _own_keys(self, piece: Piece, index: int) -> tuple[Piece, Piece]:
        """Divide a piece into what this task may have, and keys that another task has."""
        keys = piece.rows.column("ordering_key").dictionary_encode()
        mine = np.array(
            [self._key_index.setdefault(k, index) == index for k in keys.dictionary.to_pylist()],
            np.bool_,
        )
        codes = keys.indices.fill_null(-1).to_numpy()
        # A message without a key goes anywhere.
        is_mine = np.append(mine, True)[codes]
        return piece.part(is_mine), piece.part(~is_mine)

    def end_read(self, number: int) -> None:
        """A task was sent the delivery to its end."""
        with self._lock:
            delivery = self._held.get(number)
            if delivery is not None:
                delivery.readers -= 1
                delivery.was_read = True

    def put_back(self, number: int) -> bool:
        """A read was broken off: unless another one was not, its messages can go to any task.

        They go to the front of the buffer, in their order. Returns whether they did.
        """
        with self._lock:
            delivery = self._held.get(number)
            if delivery is None:
                return False
            delivery.readers -= 1
            if delivery.readers or delivery.was_read:
                return False
            self._let_go(delivery)
            self._buffer.extendleft(reversed(delivery.pieces))
            self._buffered_rows += delivery.rows
            self._buffered_bytes += delivery.size
            return True

    def ack_ids(self, number: int) -> list[pa.StringArray]:
        """Give the ack ids of a delivery; its leases are prolonged until it is settled."""
        with self._lock:
            delivery = self._held.get(number)
            return [piece.ack_ids for piece in delivery.pieces] if delivery else []

    def settle(self, number: int) -> None:
        """Let go of a delivery that was acknowledged or handed back."""
        with self._lock:
            delivery = self._held.get(number)
            if delivery is not None:
                self._let_go(delivery)

    def _let_go(self, delivery: HeldDelivery) -> None:
        del self._held[delivery.number]
        del self._by_task[delivery.tick, delivery.index]
        self._held_rows -= delivery.rows
        self._held_bytes -= delivery.size

    def held_numbers(self) -> list[int]:
        """List the deliveries that are not settled."""
        with self._lock:
            return list(self._held)

    def pick(self, message_ids: Set[str]) -> list[pa.StringArray]:
        """Take messages out that no task has got; returns their ack ids."""
        picked: list[pa.StringArray] = []
        with self._lock:
            kept: deque[Piece] = deque()
            for piece in self._buffer:
                names = piece.rows.column("message_id").to_pylist()
                is_meant = np.fromiter((name in message_ids for name in names), np.bool_)
                if is_meant.any():
                    picked.append(piece.part(is_meant).ack_ids)
                if not is_meant.all():
                    kept.append(piece.part(~is_meant))
            self._buffer = kept
            self._buffered_rows = sum(piece.count for piece in kept)
            self._buffered_bytes = sum(piece.size for piece in kept)
        return picked

    def expire(self, before: float) -> int:
        """Forget messages that no task has got and whose leases end before a time; counts them."""
        with self._lock:
            stale = [piece for piece in self._buffer if piece.leased_until < before]
            if stale:
                self._buffer = deque(p for p in self._buffer if p.leased_until >= before)
                self._buffered_rows -= sum(piece.count for piece in stale)
                self._buffered_bytes -= sum(piece.size for piece in stale)
            return sum(piece.count for piece in stale)

    def is_leased(self, number: int, until: float) -> bool:
        """Tell whether the leases of a delivery last until a time, as far as is known here."""
        with self._lock:
            delivery = self._held.get(number)
            return delivery is None or all(p.leased_until >= until for p in delivery.pieces)

    def late(self, before: float) -> list[HeldDelivery]:
        """List deliveries that were read, are not settled, and whose leases end before a time."""
        with self._lock:
            return [
                delivery
                for delivery in self._held.values()
                if delivery.was_read and any(p.leased_until < before for p in delivery.pieces)
            ]

    def release(self) -> list[pa.StringArray]:
        """Let go of what no task has got; returns its ack ids."""
        with self._lock:
            ids = [piece.ack_ids for piece in self._buffer]
            self._buffer.clear()
            self._buffered_rows = self._buffered_bytes = 0
            return ids

    def drain(self) -> list[pa.StringArray]:
        """Let go of everything; returns all ack ids."""
        with self._lock:
            pieces = list(self._all())
            self._buffer.clear()
            self._later.clear()
            self._held.clear()
            self._by_task.clear()
            self._buffered_rows = self._buffered_bytes = 0
            self._held_rows = self._held_bytes = 0
            return [piece.ack_ids for piece in pieces]

    def due(self, before: float) -> list[Piece]:
        """List the pieces whose leases end before a time."""
        with self._lock:
            return [piece for piece in self._all() if piece.leased_until < before]

    def _all(self) -> Iterator[Piece]:
        yield from self._buffer
        yield from self._later
        for delivery in self._held.values():
            yield from delivery.pieces

    def state(self) -> ReservoirState:
        """Tell what is held; its cost does not grow with the messages."""
        with self._lock:
            # Each of these is in the order in which it came.
            heads = [group[0] for group in (self._buffer, self._later) if group]
            heads += [held.pieces[0] for held in self._held.values() if held.pieces]
            oldest = min((piece.received_at for piece in heads), default=None)
            return ReservoirState(
                self._buffered_rows, self._buffered_bytes, self._held_rows, oldest
            )

    @property
    def total_bytes(self) -> int:
        """Bytes of message data in memory; cheap enough to ask for with every response."""
        return self._buffered_bytes + self._held_bytes
