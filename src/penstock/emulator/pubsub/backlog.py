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
from penstock.emulator.pubsub.ordering import KeyLocks, Keys, Mask, is_after

READY, LEASED, WAITING, DONE = range(4)
# The owner of a lease given by a unary Pull; streams are numbered from 1.
NO_STREAM = 0
_SCAN = 65_536
# An ack id names its lease by a token: the seeks before it (high half), the attempt (low half).
_SEEK_SHIFT = 32
# Of how many redelivered messages the last attempt is remembered after they are forgotten.
_MOST_REMEMBERED = 100_000


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
    """Messages handed out together; the tokens go into their ack ids."""

    positions: Positions
    attempts: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int64]


@dataclass
class Backlog:
    """State of every message of one subscription; `first` is the first it was there for."""

    log: TopicLog
    first: int
    is_ordered: bool = False
    counters: Counters = field(default_factory=Counters)
    loads: dict[int, StreamLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._state = Column(np.uint8, self.first)
        # Deliveries so far. DONE with 0: it was never for this subscription, or was given up.
        self._attempt = Column(np.int32, self.first)
        # LEASED: when the lease ends; WAITING: when the message becomes ready again.
        self._until = Column(np.float64, self.first)
        self._owner = Column(np.int32, self.first)
        # No position before this one is READY.
        self._ready_from = self.first
        self._outstanding = 0
        self._waiting = 0
        self._unacked = 0
        self._seeks = 0
        self._locks = KeyLocks()
        self._key_generation = self.log.key_generation
        # Last attempts over 1 of acknowledged messages; the columns forget those.
        self._last_attempts: dict[int, int] = {}

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

    @property
    def done_before(self) -> int:
        """All messages before this position are done."""
        return self._state.first

    def extend(self, matches: Mask) -> int:
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
            total = np.cumsum(self.log.sizes[positions], dtype=np.int64)
            fitting = int(np.searchsorted(total, most_bytes, side="right"))
            positions = positions[: max(1, fitting)]
        attempts = self._attempt[positions] + 1
        tokens = self._token(attempts)
        if not len(positions):
            return Lease(positions, attempts, tokens)
        self._attempt[positions] = attempts
        self._state[positions] = LEASED
        self._until[positions] = until
        self._owner[positions] = stream
        self._outstanding += len(positions)
        self.counters.delivered += len(positions)
        self.counters.redelivered += int((attempts > 1).sum())
        self._add_load(positions, 1)
        if self.is_ordered:
            self._locks.take(self._keys(positions), stream)
        else:
            self._ready_from = int(positions[-1]) + 1
        return Lease(positions, attempts, tokens)

    def current(self, positions: Positions, tokens: npt.NDArray[np.int64], now: float) -> Mask:
        """Tell which (position, token) pairs name a lease that still holds."""
        held = self._inside(positions)
        inside = positions[held]
        same = self._token(self._attempt[inside]) == tokens[held]
        held[held] = same & (self._state[inside] == LEASED) & (self._until[inside] > now)
        return held

    def was_acked(self, positions: Positions, tokens: npt.NDArray[np.int64]) -> Mask:
        """Tell which pairs name the lease under which the message was acknowledged."""
        inside = self._inside(positions)
        known = positions[inside]
        last = np.ones(len(positions), np.int64)
        last[inside] = self._attempt[known]
        if self._last_attempts:
            older = np.flatnonzero(positions < self._state.first)
            last[older] = [self._last_attempts.get(p, 1) for p in positions[older].tolist()]
        done = (positions < self._state.first) & (positions >= 0)
        done[inside] = self._state[known] == DONE
        done &= self._token(last) == tokens
        return done

    def ack(self, positions: Positions) -> int:
        """Acknowledge, whatever the state of the lease; returns how many were new."""
        positions = self._finish(positions)
        again = positions[self._attempt[positions] > 1]
        self._last_attempts.update(zip(again.tolist(), self._attempt[again].tolist(), strict=True))
        while len(self._last_attempts) > _MOST_REMEMBERED:
            del self._last_attempts[next(iter(self._last_attempts))]
        self.counters.acked += len(positions)
        return len(positions)

    def give_up(self, positions: Positions) -> int:
        """Be done with messages that nobody acknowledged; they never come back by themselves."""
        positions = self._finish(positions)
        self._attempt[positions] = 0
        return len(positions)

    def out_of_order(self, positions: Positions) -> Mask:
        """Tell which leases could only be acknowledged after others of the same key."""
        out = np.setdiff1d(self._where(LEASED), positions)
        return is_after(self._keys(positions), positions, self._keys(out), out)

    def extend_leases(self, positions: Positions, until: npt.NDArray[np.float64]) -> None:
        """Set when these leases end."""
        self._until[positions] = until

    def expired(self, now: float) -> Positions:
        """List the leases that have ended; the caller gives them back."""
        if not self._outstanding:
            return np.empty(0, np.int64)
        leased = self._where(LEASED)
        found: Positions = leased[self._until[leased] <= now]
        return found

    def give_back(self, positions: Positions, *, with_acked: bool = False) -> Positions:
        """End leases without an acknowledgement; the messages become ready again.

        On an ordered subscription the later messages of the same keys come back with them, so
        that they are delivered again in order; the service does not except those that were
        acknowledged (`with_acked`). Returns every position that came back.
        """
        positions = np.unique(positions)
        if self.is_ordered and len(positions):
            state = self._state.window(self._state.first, self.end)
            attempts = self._attempt.window(self._state.first, self.end)
            delivered = state == LEASED
            if with_acked:
                delivered |= (state == DONE) & (attempts > 0)
            others = np.flatnonzero(delivered) + self._state.first
            later = is_after(self._keys(others), others, self._keys(positions), positions)
            positions = np.union1d(positions, others[later])
        self._unacked += int((self._state[positions] == DONE).sum())
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
        waiting = self._where(WAITING)
        due = waiting[self._until[waiting] <= now]
        if len(due):
            self._state[due] = READY
            self._waiting -= len(due)
            self._ready_from = min(self._ready_from, int(due[0]))
        return len(due)

    def seek(self, is_unacked: Mask, low: int) -> None:
        """Make exactly the marked positions of [low, low + len) unacknowledged, all others done.

        Leases end, and ack ids from before the seek name none of those that come after it.
        """
        self._leave(np.arange(self._state.first, self.end, dtype=np.int64))
        if low < self._state.first:
            for column in (self._state, self._attempt, self._until, self._owner):
                column.open_front(low, 0)
        self._state.window(self._state.first, self.end)[:] = DONE
        self._attempt.window(self._state.first, self.end)[:] = 0
        marked = low + np.flatnonzero(is_unacked)
        self._state[marked] = READY
        self._unacked = len(marked)
        self._ready_from = int(marked[0]) if len(marked) else self.end
        self._seeks += 1
        self._last_attempts.clear()

    def drop_before(self, position: int) -> int:
        """Give up on messages older than this (their retention has passed); returns how many."""
        position = min(position, self.end)
        if position <= self._state.first:
            return 0
        return self.give_up(np.arange(self._state.first, position, dtype=np.int64))

    def unacked_mask(self, low: int, high: int) -> Mask:
        """Tell for each position of [low, high) whether it is unacknowledged."""
        mask = np.zeros(high - low, np.bool_)
        start = max(low, self._state.first)
        if start < high:
            mask[start - low :] = self._state.window(start, high) != DONE
        return mask

    def needed_mask(self) -> Mask:
        """Tell for each position from `done_before` on whether it may be delivered again."""
        state = self._state.window(self._state.first, self.end)
        needed: Mask = state != DONE
        if self.is_ordered and self._unacked:
            # An acknowledged message comes back with an earlier one of its key.
            acked = (state == DONE) & (self._attempt.window(self._state.first, self.end) > 0)
            first = self._state.first
            later = np.flatnonzero(acked) + first
            open_ones = np.flatnonzero(needed) + first
            after = is_after(self._keys(later), later, self._keys(open_ones), open_ones)
            needed[later[after] - first] = True
        return needed

    def trim(self) -> None:
        """Forget the done messages at the front."""
        first = self.end
        if self._unacked:
            state = self._state.window(self._state.first, self.end)
            first = self._state.first + int(np.argmax(state != DONE))
        for column in (self._state, self._attempt, self._until, self._owner):
            column.trim(first)
        self._ready_from = max(self._ready_from, first)

    def close_stream(self, stream: int) -> None:
        """Stop counting for a stream that is gone; its leases run on until they end."""
        self.loads.pop(stream, None)

    def _token(self, attempts: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        tokens: npt.NDArray[np.int64] = attempts.astype(np.int64) | (self._seeks << _SEEK_SHIFT)
        return tokens

    def _inside(self, positions: Positions) -> Mask:
        inside: Mask = (positions >= self._state.first) & (positions < self.end)
        return inside

    def _where(self, state: int) -> Positions:
        window = self._state.window(self._state.first, self.end)
        found: Positions = np.flatnonzero(window == state) + self._state.first
        return found

    def _find_ready(self, most: int, stream: int) -> Positions:
        found: list[Positions] = []
        count = 0
        low = self._ready_from
        is_first = True
        while low < self.end and count < most:
            high = min(self.end, low + _SCAN)
            ready = low + np.flatnonzero(self._state.window(low, high) == READY)
            # Messages that are ready, but not for this stream, must not be passed over for good.
            is_first = is_first and not len(ready)
            if is_first:
                self._ready_from = high
            if self.is_ordered and len(ready):
                ready = ready[self._may_have(ready, stream)]
            ready = ready[: most - count]
            found.append(ready)
            count += len(ready)
            low = high
        return np.concatenate([np.empty(0, np.int64), *found])

    def _may_have(self, positions: Positions, stream: int) -> Mask:
        """Tell which messages may go to this stream without breaking their key's order.

        The messages of one key that are out at one time are all with one stream; a unary pull
        gets a key only when none of its messages is out. Nothing overtakes a message that waits.
        """
        keys = self._keys(positions)
        allowed = self._locks.is_free(keys)
        if stream != NO_STREAM:
            allowed |= self._locks.is_with(keys, stream)
        if self._waiting:
            waiting = self._where(WAITING)
            allowed &= ~is_after(keys, positions, self._keys(waiting), waiting)
        return allowed

    def _keys(self, positions: Positions) -> Keys:
        if self._key_generation != self.log.key_generation:
            self._key_generation = self.log.key_generation
            leased = self._where(LEASED)
            self._locks.reset(self.log.key_codes[leased], self._owner[leased])
        keys: Keys = self.log.key_codes[positions]
        return keys

    def _finish(self, positions: Positions) -> Positions:
        positions = np.unique(positions)
        positions = positions[self._inside(positions)]
        positions = positions[self._state[positions] != DONE]
        self._leave(positions)
        self._state[positions] = DONE
        self._unacked -= len(positions)
        return positions

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
            self._locks.release(self._keys(leased))

    def _add_load(self, positions: Positions, sign: int) -> None:
        owners = self._owner[positions]
        sizes = self.log.sizes[positions]
        for stream in np.unique(owners).tolist():
            load = self.loads.get(stream)
            if load is not None:
                mine = owners == stream
                load.messages += sign * int(mine.sum())
                load.size += sign * int(sizes[mine].sum())
