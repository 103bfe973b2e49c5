"""One subscription's view of its topic: what is ready, leased, waiting or done.

All of it is numpy columns over positions, so that leasing, acknowledging and expiring cost a few
array operations per request, not per message. Runs in the emulator's event loop; no I/O, and time
is always a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.emulator.pubsub.columns import Column, Positions
from penstock.emulator.pubsub.log import TopicLog

READY, LEASED, DONE, WAITING = range(4)
# The owner of a lease given by a unary Pull; streams are numbered from 1.
NO_STREAM = 0
_SCAN = 65_536


@dataclass
class Counters:
    """What happened on a subscription since it was created, in messages."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead_lettered: int = 0


@dataclass
class StreamLoad:
    """What one stream holds unacknowledged; flow control compares it with the client's limits."""

    messages: int = 0
    size: int = 0


@dataclass(frozen=True)
class Lease:
    """Messages handed out together."""

    positions: Positions
    attempts: npt.NDArray[np.int32]


@dataclass
class Backlog:
    """State of every message of one subscription."""

    log: TopicLog
    first: int
    is_ordered: bool = False
    counters: Counters = field(default_factory=Counters)
    loads: dict[int, StreamLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._state = Column(np.uint8, self.first)
        self._attempt = Column(np.int32, self.first)
        # LEASED: when the lease ends; WAITING: when the message becomes ready again.
        self._until = Column(np.float64, self.first)
        self._owner = Column(np.int32, self.first)
        # No position before this one is READY.
        self._ready_from = self.first
        self._outstanding = 0
        self._waiting = 0
        self._unacked = 0
        # Per ordering key: messages out, and the stream that has them. Grown on demand.
        self._key_out = np.zeros(1, np.int64)
        self._key_owner = np.zeros(1, np.int32)

    @property
    def end(self) -> int:
        """The position after the newest message."""
        return self._state.end

    @property
    def outstanding(self) -> int:
        """Messages leased now."""
        return self._outstanding

    @property
    def unacked(self) -> int:
        """Messages not yet acknowledged, leased or not."""
        return self._unacked

    def extend(self, matches: npt.NDArray[np.bool_]) -> int:
        """Take in newly published messages; those that do not match are done at once."""
        count = int(matches.sum())
        self._state.extend(len(matches), np.where(matches, READY, DONE))
        self._attempt.extend(len(matches), 0)
        self._until.extend(len(matches), 0.0)
        self._owner.extend(len(matches), NO_STREAM)
        self.counters.published += count
        self._unacked += count
        return count

    def lease(self, most: int, most_bytes: int, until: float, stream: int) -> Lease:
        """Hand out ready messages, oldest first.

        At least one message is handed out however large it is, or a message over the byte limit
        would never be delivered.
        """
        positions = self._find_ready(most, stream)
        if len(positions):
            total = np.cumsum(self.log.sizes[positions])
            fitting = int(np.searchsorted(total, most_bytes, side="right"))
            positions = positions[: max(1, fitting)]
        if not len(positions):
            return Lease(positions, np.empty(0, np.int32))
        attempts = self._attempt[positions] + 1
        self._attempt[positions] = attempts
        self._state[positions] = LEASED
        self._until[positions] = until
        self._owner[positions] = stream
        self._outstanding += len(positions)
        self.counters.delivered += len(positions)
        self.counters.redelivered += int((attempts > 1).sum())
        self._add_load(positions, 1)
        if self.is_ordered:
            keys = self._keys(positions)
            np.add.at(self._key_out, keys, 1)
            self._key_owner[keys] = stream
        else:
            self._ready_from = int(positions[-1]) + 1
        return Lease(positions, attempts)

    def current(
        self, positions: Positions, attempts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Tell which (position, attempt) pairs name a lease that still holds."""
        inside = (positions >= self._state.first) & (positions < self.end)
        safe = np.where(inside, positions, self._state.first)
        if not len(self._state):
            return np.zeros(len(positions), np.bool_)
        held: npt.NDArray[np.bool_] = self._state[safe] == LEASED
        same: npt.NDArray[np.bool_] = self._attempt[safe] == attempts
        return inside & held & same

    def is_done(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Tell which messages were acknowledged already (or were never for this subscription)."""
        done = positions < self._state.first
        inside = ~done & (positions < self.end)
        done[inside] = self._state[positions[inside]] == DONE
        return done

    def ack(self, positions: Positions) -> int:
        """Acknowledge, whatever the state of the lease; returns how many were new."""
        positions = np.unique(positions)
        positions = positions[(positions >= self._state.first) & (positions < self.end)]
        positions = positions[self._state[positions] != DONE]
        self._leave(positions)
        self._state[positions] = DONE
        self._unacked -= len(positions)
        self.counters.acked += len(positions)
        return len(positions)

    def extend_leases(self, positions: Positions, until: float | npt.NDArray[np.float64]) -> None:
        """Set when these leases end."""
        self._until[positions] = until

    def expired(self, now: float) -> Positions:
        """List the leases that have ended; the caller gives them back."""
        if not self._outstanding:
            return np.empty(0, np.int64)
        state = self._state.window(self._state.first, self.end)
        until = self._until.window(self._state.first, self.end)
        found: Positions = np.flatnonzero((state == LEASED) & (until <= now)) + self._state.first
        return found

    def give_back(self, positions: Positions) -> Positions:
        """End leases without an acknowledgement; the messages become ready again.

        On an ordered subscription the later messages of the same keys come back with them, so
        that they are delivered again in order. Returns every position that came back.
        """
        positions = np.unique(positions)
        if self.is_ordered and len(positions):
            positions = self._with_later_of_same_key(positions)
        self._leave(positions)
        self._state[positions] = READY
        if len(positions):
            self._ready_from = min(self._ready_from, int(positions[0]))
        return positions

    def attempts(self, positions: Positions) -> npt.NDArray[np.int32]:
        """Tell how often each message was delivered."""
        values: npt.NDArray[np.int32] = self._attempt[positions]
        return values

    def hold(self, positions: Positions, until: npt.NDArray[np.float64]) -> None:
        """Keep ready messages back until a time (the retry policy's backoff)."""
        self._state[positions] = WAITING
        self._until[positions] = until
        self._waiting += len(positions)

    def wake(self, now: float) -> int:
        """Make held messages ready whose time has come."""
        if not self._waiting:
            return 0
        state = self._state.window(self._state.first, self.end)
        until = self._until.window(self._state.first, self.end)
        due = np.flatnonzero((state == WAITING) & (until <= now))
        if len(due):
            state[due] = READY
            self._waiting -= len(due)
            self._ready_from = min(self._ready_from, self._state.first + int(due[0]))
        return len(due)

    def seek(self, is_unacked: npt.NDArray[np.bool_], low: int) -> None:
        """Make exactly the marked positions of [low, low + len) unacknowledged, all others done."""
        everything = np.arange(self._state.first, self.end, dtype=np.int64)
        self._leave(everything)
        if low < self._state.first:
            for column in (self._state, self._attempt, self._until, self._owner):
                column.open_front(low, 0)
        self._state.window(self._state.first, self.end)[:] = DONE
        marked = low + np.flatnonzero(is_unacked)
        self._state[marked] = READY
        self._attempt[marked] = 0
        self._unacked = len(marked)
        self._ready_from = int(marked[0]) if len(marked) else self.end

    def drop_before(self, position: int) -> None:
        """Give up on messages older than this (their retention has passed)."""
        position = min(position, self.end)
        if position <= self._state.first:
            return
        old = np.arange(self._state.first, position, dtype=np.int64)
        old = old[self._state[old] != DONE]
        self._leave(old)
        self._state[old] = DONE
        self._unacked -= len(old)

    def unacked_mask(self, low: int, high: int) -> npt.NDArray[np.bool_]:
        """Tell for each position of [low, high) whether it is unacknowledged."""
        mask = np.zeros(high - low, np.bool_)
        start = max(low, self._state.first)
        if start < high:
            mask[start - low :] = self._state.window(start, high) != DONE
        return mask

    def trim(self) -> None:
        """Forget the done messages at the front."""
        state = self._state.window(self._state.first, self.end)
        first = self.end
        if self._unacked:
            first = self._state.first + int(np.argmax(state != DONE))
        for column in (self._state, self._attempt, self._until, self._owner):
            column.trim(first)
        self._ready_from = max(self._ready_from, first)

    @property
    def oldest_unacked(self) -> int:
        """The oldest position that may not be acknowledged yet."""
        return self._state.first

    def needs(self, low: int, high: int) -> bool:
        """Tell whether any message of [low, high) is unacknowledged."""
        low = max(low, self._state.first)
        return low < high and bool((self._state.window(low, min(high, self.end)) != DONE).any())

    def close_stream(self, stream: int) -> None:
        """Stop counting for a stream that is gone; its leases run on until they end."""
        self.loads.pop(stream, None)

    def _find_ready(self, most: int, stream: int) -> Positions:
        found: list[Positions] = []
        count = 0
        low = self._ready_from
        while low < self.end and count < most:
            high = min(self.end, low + _SCAN)
            ready = low + np.flatnonzero(self._state.window(low, high) == READY)
            if not found and not len(ready):
                self._ready_from = high
            if self.is_ordered and len(ready):
                ready = ready[self._may_have(ready, stream)]
            ready = ready[: most - count]
            if len(ready):
                found.append(ready)
                count += len(ready)
            low = high
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _may_have(self, positions: Positions, stream: int) -> npt.NDArray[np.bool_]:
        """Tell which messages may go to this stream without breaking their key's order.

        The messages of one key that are out at one time are all with one stream; a unary pull
        gets a key only when none of its messages is out.
        """
        keys = self._keys(positions)
        free: npt.NDArray[np.bool_] = (keys == 0) | (self._key_out[keys] == 0)
        if stream == NO_STREAM:
            return free
        mine: npt.NDArray[np.bool_] = self._key_owner[keys] == stream
        return free | mine

    def _keys(self, positions: Positions) -> npt.NDArray[np.int32]:
        keys: npt.NDArray[np.int32] = self.log.key_codes[positions]
        missing = int(keys.max(initial=0)) + 1 - len(self._key_out)
        if missing > 0:
            grow = missing + len(self._key_out)
            self._key_out = np.concatenate([self._key_out, np.zeros(grow, np.int64)])
            self._key_owner = np.concatenate([self._key_owner, np.zeros(grow, np.int32)])
        return keys

    def _with_later_of_same_key(self, positions: Positions) -> Positions:
        keys = self._keys(positions)
        earliest = np.full(len(self._key_out), self.end, np.int64)
        np.minimum.at(earliest, keys, positions)
        earliest[0] = self.end
        state = self._state.window(self._state.first, self.end)
        leased = np.flatnonzero(state == LEASED) + self._state.first
        later = leased[leased > earliest[self._keys(leased)]]
        return np.union1d(positions, later)

    def _leave(self, positions: Positions) -> None:
        """Take messages out of LEASED or WAITING, with all that is counted for those."""
        state = self._state[positions]
        self._waiting -= int((state == WAITING).sum())
        leased = positions[state == LEASED]
        if not len(leased):
            return
        self._outstanding -= len(leased)
        self._add_load(leased, -1)
        if self.is_ordered:
            np.add.at(self._key_out, self._keys(leased), -1)

    def _add_load(self, positions: Positions, sign: int) -> None:
        owners = self._owner[positions]
        sizes = self.log.sizes[positions]
        for stream in np.unique(owners).tolist():
            load = self.loads.get(stream)
            if load is not None:
                mine = owners == stream
                load.messages += sign * int(mine.sum())
                load.size += sign * int(sizes[mine].sum())
