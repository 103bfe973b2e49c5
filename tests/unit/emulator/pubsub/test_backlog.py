"""The backlog against a naive model: a dict per message, changed one message at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.emulator.pubsub import backlog as backlog_module
from penstock.emulator.pubsub.backlog import NO_STREAM, Backlog, StreamLoad
from penstock.emulator.pubsub.columns import Positions
from penstock.emulator.pubsub.log import TopicLog

STREAMS = (1, 2, 3)
LEASE_SECONDS = 10.0


def at(*positions: int) -> Positions:
    return np.array(positions, np.int64)


def publish(log: TopicLog, *backlogs: Backlog, keys: Iterable[str], size: int = 10) -> None:
    keys = list(keys)
    messages = pa.array([b"x" * size] * len(keys), pa.binary())
    log.append(messages, pa.array(keys, pa.string()), 10**16 + log.end, 1_000_000 + log.end)
    for backlog in backlogs:
        backlog.extend(np.ones(len(keys), np.bool_))


@dataclass
class Message:
    """What the model knows of one message."""

    key: str
    size: int
    state: str = "ready"
    attempt: int = 0
    until: float = 0.0
    owner: int = NO_STREAM
    token: tuple[int, int] = (0, 0)


class BacklogMachine(RuleBasedStateMachine):
    """Random operations on a Backlog and on the model, compared after each."""

    ordered = False
    with_acked = False

    @initialize(
        before=st.integers(0, 5),
        keys=st.lists(st.sampled_from(["", "a", "b"]), min_size=8, max_size=16),
    )
    def start(self, before: int, keys: list[str]) -> None:
        self.log = TopicLog()
        publish(self.log, keys=["old"] * before)
        self.backlog = Backlog(self.log, self.log.end, self.ordered)
        for stream in STREAMS:
            self.backlog.loads[stream] = StreamLoad()
        self.messages: dict[int, Message] = {}
        # Key and size of every message there ever was.
        self.archive = dict.fromkeys(range(before), ("old", 10))
        self.now = 100.0
        self.seeks = 0
        self.acked = 0
        self.add(keys, 5, [True] * len(keys))

    def where(self, *states: str) -> list[int]:
        return [p for p, message in sorted(self.messages.items()) if message.state in states]

    def chosen(self, data: st.DataObject, positions: list[int]) -> list[int]:
        if not positions:
            return []
        some = st.lists(st.sampled_from(positions), min_size=1, max_size=4, unique=True)
        return data.draw(some)

    @rule(
        keys=st.lists(st.sampled_from(["", "", "a", "b", "c"]), min_size=1, max_size=8),
        size=st.integers(1, 30),
        data=st.data(),
    )
    def publish(self, keys: list[str], size: int, data: st.DataObject) -> None:
        likely = st.sampled_from([True, True, True, False])
        self.add(keys, size, data.draw(st.lists(likely, min_size=len(keys), max_size=len(keys))))

    def add(self, keys: list[str], size: int, matches: list[bool]) -> None:
        for number, (key, match) in enumerate(zip(keys, matches, strict=True)):
            position = self.log.end + number
            self.archive[position] = (key, size)
            self.messages[position] = Message(key, size, "ready" if match else "done")
        publish(self.log, keys=keys, size=size)
        self.backlog.extend(np.array(matches))

    def may_have(self, position: int, stream: int, held: dict[str, int]) -> bool:
        key = self.messages[position].key
        if not self.ordered or not key:
            return True
        waiting = [p for p in self.where("waiting") if self.messages[p].key == key]
        if waiting and waiting[0] < position:
            return False
        return key not in held or (stream != NO_STREAM and held[key] == stream)

    @rule(
        most=st.integers(1, 10),
        most_bytes=st.integers(1, 100),
        stream=st.sampled_from((NO_STREAM, *STREAMS)),
    )
    def lease(self, most: int, most_bytes: int, stream: int) -> None:
        held = {self.messages[p].key: self.messages[p].owner for p in self.where("leased")}
        expected: list[int] = []
        total = 0
        for position in self.where("ready"):
            if len(expected) == most:
                break
            if not self.may_have(position, stream, held):
                continue
            total += self.messages[position].size
            if expected and total > most_bytes:
                break
            expected.append(position)
        until = self.now + LEASE_SECONDS
        lease = self.backlog.lease(most, most_bytes, until, stream)
        assert lease.positions.tolist() == expected
        for position, attempt in zip(expected, lease.attempts.tolist(), strict=True):
            message = self.messages[position]
            message.state, message.until, message.owner = "leased", until, stream
            message.attempt += 1
            message.token = (self.seeks, message.attempt)
            assert attempt == message.attempt
        assert [self.messages[p].token for p in expected] == [
            (token >> 32, token & 0xFFFFFFFF) for token in lease.tokens.tolist()
        ]
        if expected:
            assert len(self.log.take(lease.positions)) == len(expected)

    @rule(data=st.data(), anything=st.sampled_from([False, False, False, True]))
    def ack(self, data: st.DataObject, anything: bool) -> None:
        positions = self.chosen(data, sorted(self.messages) if anything else self.where("leased"))
        fresh = [p for p in positions if self.messages[p].state != "done"]
        assert self.backlog.ack(at(*positions, *positions)) == len(fresh)
        for position in fresh:
            self.messages[position].state = "done"
        self.acked += len(fresh)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        positions = self.chosen(data, self.where("ready", "leased"))
        assert self.backlog.give_up(at(*positions)) == len(positions)
        for position in positions:
            self.messages[position].state, self.messages[position].attempt = "done", 0

    @rule(data=st.data(), held=st.booleans())
    def give_back(self, data: st.DataObject, held: bool) -> None:
        self.come_back(self.chosen(data, self.where("leased")), held)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]), held=st.booleans())
    def pass_time(self, seconds: float, held: bool) -> None:
        self.now += seconds
        ended = [p for p in self.where("leased") if self.messages[p].until <= self.now]
        assert self.backlog.expired(self.now).tolist() == ended
        self.come_back(ended, held)
        due = [p for p in self.where("waiting") if self.messages[p].until <= self.now]
        assert self.backlog.wake(self.now) == len(due)
        for position in due:
            self.messages[position].state = "ready"

    def come_back(self, positions: list[int], held: bool) -> None:
        expected = set(positions)
        if self.ordered:
            for position, message in self.messages.items():
                after = [p for p in positions if p < position and self.messages[p].key]
                was_out = message.state == "leased" or (
                    self.with_acked and message.state == "done" and message.attempt > 0
                )
                if was_out and any(self.messages[p].key == message.key for p in after):
                    expected.add(position)
        returned = self.backlog.give_back(at(*positions), with_acked=self.with_acked)
        assert returned.tolist() == sorted(expected)
        for position in expected:
            self.messages[position].state = "ready"
        if held:
            until = self.now + 5.0 + returned.astype(np.float64)
            self.backlog.hold(returned, until)
            for position, end in zip(returned.tolist(), until.tolist(), strict=True):
                self.messages[position].state = "waiting"
                self.messages[position].until = end

    @rule(data=st.data(), seconds=st.sampled_from([1.0, 30.0]))
    def extend_leases(self, data: st.DataObject, seconds: float) -> None:
        positions = self.chosen(data, self.where("leased"))
        until = np.full(len(positions), self.now + seconds)
        self.backlog.extend_leases(at(*positions), until)
        for position in positions:
            self.messages[position].until = self.now + seconds

    # Rare, because they end whatever the other rules have built up.
    @precondition(lambda self: self.log.end % 4 == 0)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(self.log.first, self.log.end))
        kept = set(self.log.kept_positions(low, self.log.end).tolist())
        mask = np.array([p in kept and data.draw(st.booleans()) for p in range(low, self.log.end)])
        self.backlog.seek(mask.astype(np.bool_), low)
        self.seeks += 1
        for position, message in self.messages.items():
            message.attempt = 0
            message.state = "ready" if position >= low and mask[position - low] else "done"
        for position in range(low, self.log.end):
            if mask[position - low] and position not in self.messages:
                self.messages[position] = Message(*self.archive[position])

    @precondition(lambda self: self.log.end % 4 == 1)
    @rule(data=st.data())
    def drop_before(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, self.log.end + 2))
        dropped = [p for p in self.where("ready", "leased", "waiting") if p < position]
        assert self.backlog.drop_before(position) == len(dropped)
        for p in dropped:
            self.messages[p].state, self.messages[p].attempt = "done", 0

    @rule()
    def sweep(self) -> None:
        """Free what is not needed, as the housekeeping does."""
        self.backlog.trim()
        low, mask = self.backlog.done_before, self.backlog.needed_mask()
        self.log.release(
            low, lambda start, end: bool(mask[max(0, start - low) : max(0, end - low)].any())
        )
        for position in [p for p in self.messages if p < low]:
            assert self.messages.pop(position).state == "done"

    @invariant()
    def counts_agree(self) -> None:
        leased = self.where("leased")
        unacked = self.where("ready", "leased", "waiting")
        assert self.backlog.outstanding == len(leased)
        assert self.backlog.unacked == len(unacked)
        assert self.backlog.counters.acked == self.acked
        low = self.backlog.done_before
        mask = self.backlog.unacked_mask(low, self.backlog.end)
        assert (low + np.flatnonzero(mask)).tolist() == unacked
        for stream in STREAMS:
            mine = [self.messages[p].size for p in leased if self.messages[p].owner == stream]
            load = self.backlog.loads[stream]
            assert (load.messages, load.size) == (len(mine), sum(mine))

    @invariant()
    def tokens_agree(self) -> None:
        known = sorted(p for p, message in self.messages.items() if message.token[1])
        tokens = [(self.messages[p].token[0] << 32) | self.messages[p].token[1] for p in known]
        current = self.backlog.current(at(*known), at(*tokens), self.now)
        assert current.tolist() == [
            self.messages[p].state == "leased" and self.messages[p].until > self.now for p in known
        ]
        stale = self.backlog.current(at(*known), at(*tokens) + 1, self.now)
        assert not stale.any()

    @invariant()
    def one_holder_for_a_key(self) -> None:
        if not self.ordered:
            return
        holders: dict[str, set[int]] = {}
        for position in self.where("leased"):
            message = self.messages[position]
            if message.key:
                holders.setdefault(message.key, set()).add(message.owner)
        assert all(len(owners) == 1 for owners in holders.values())

    def teardown(self) -> None:
        """Nothing is lost: in the end every open message can still be delivered."""
        self.pass_time(1000.0, False)
        while self.backlog.unacked:
            lease = self.backlog.lease(1000, 10**6, self.now + 1, NO_STREAM)
            assert len(lease.positions), self.messages
            self.backlog.ack(lease.positions)
        assert self.backlog.lease(10, 10**6, self.now + 1, NO_STREAM).positions.tolist() == []


class OrderedMachine(BacklogMachine):
    """An ordered subscription with exactly-once delivery: nothing acknowledged is repeated."""

    ordered = True


class RepeatingMachine(BacklogMachine):
    """An ordered subscription: what was acknowledged out of order is repeated."""

    ordered = True
    with_acked = True


SETTINGS = settings(max_examples=60, stateful_step_count=50, deadline=None)
for machine in (BacklogMachine, OrderedMachine, RepeatingMachine):
    machine.TestCase.settings = SETTINGS
TestBacklogAgreesWithTheModel = BacklogMachine.TestCase
TestOrderedBacklogAgreesWithTheModel = OrderedMachine.TestCase
TestRepeatingBacklogAgreesWithTheModel = RepeatingMachine.TestCase


@pytest.fixture
def small_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "_SCAN", 4)


def test_blocked_messages_are_not_passed_over_for_good(small_scan: None) -> None:
    """Found by reading: a key that is out hid the messages behind a stretch without any ready."""
    log = TopicLog()
    backlog = Backlog(log, 0, is_ordered=True)
    publish(log, backlog, keys=["a", "a", "a", "a", "b", "b", "b", "b"])
    first = backlog.lease(1, 1000, 10.0, stream=1)
    backlog.ack(at(4, 5, 6, 7))
    assert backlog.lease(10, 1000, 10.0, stream=2).positions.tolist() == []
    backlog.ack(first.positions)
    assert backlog.lease(10, 1000, 10.0, stream=2).positions.tolist() == [1, 2, 3]


def test_large_backlog_is_leased_in_order_whatever_the_scan(small_scan: None) -> None:
    log = TopicLog()
    backlog = Backlog(log, 0)
    for _ in range(5):
        publish(log, backlog, keys=[""] * 10)
    backlog.ack(at(*range(0, 50, 2)))
    seen: list[int] = []
    while len(lease := backlog.lease(7, 10**6, 10.0, NO_STREAM).positions):
        seen += lease.tolist()
    assert seen == list(range(1, 50, 2))


def test_acknowledged_attempt_is_remembered_after_trimming() -> None:
    log = TopicLog()
    backlog = Backlog(log, 0)
    publish(log, backlog, keys=["", ""])
    first = backlog.lease(2, 1000, 10.0, NO_STREAM)
    backlog.give_back(at(1))
    second = backlog.lease(2, 1000, 10.0, NO_STREAM)
    backlog.ack(at(0, 1))
    for _ in range(2):
        assert backlog.was_acked(first.positions, first.tokens).tolist() == [True, False]
        assert backlog.was_acked(second.positions, second.tokens).tolist() == [True]
        backlog.trim()
    assert not backlog.was_acked(at(-1, 7), at(1, 1)).any()


def test_memory_of_attempts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "_MOST_REMEMBERED", 10)
    log = TopicLog()
    backlog = Backlog(log, 0)
    publish(log, backlog, keys=[""] * 50)
    for _ in range(2):
        backlog.give_back(backlog.lease(50, 10**6, 10.0, NO_STREAM).positions)
    backlog.ack(backlog.lease(50, 10**6, 10.0, NO_STREAM).positions)
    assert len(backlog._last_attempts) == 10


def test_keys_numbered_anew_keep_their_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.emulator.pubsub.log._IDLE_KEYS", 3)
    log = TopicLog()
    backlog = Backlog(log, 0, is_ordered=True)
    publish(log, backlog, keys=[f"gone-{n}" for n in range(20)])
    backlog.ack(at(*range(20)))
    publish(log, backlog, keys=["z", "a", "z", "a"])
    lease = backlog.lease(1, 1000, 10.0, stream=1)
    assert lease.positions.tolist() == [20]
    backlog.trim()
    log.release(backlog.done_before, lambda low, high: True)
    assert log.key_generation == 1
    assert backlog.lease(10, 1000, 10.0, stream=2).positions.tolist() == [21, 23]
    assert backlog.lease(10, 1000, 10.0, stream=1).positions.tolist() == [22]
    backlog.ack(at(20, 21, 22, 23))
    publish(log, backlog, keys=["z", "a"])
    assert backlog.lease(10, 1000, 10.0, stream=3).positions.tolist() == [24, 25]


def test_given_up_message_is_not_repeated_with_its_key() -> None:
    log = TopicLog()
    backlog = Backlog(log, 0, is_ordered=True)
    publish(log, backlog, keys=["k", "k", "k"])
    backlog.lease(3, 1000, 10.0, NO_STREAM)
    backlog.give_up(at(1))
    backlog.ack(at(2))
    assert backlog.give_back(at(0), with_acked=True).tolist() == [0, 2]


def test_acknowledged_message_is_needed_while_an_earlier_one_of_its_key_is_open() -> None:
    log = TopicLog()
    backlog = Backlog(log, 0, is_ordered=True)
    publish(log, backlog, keys=["k", "other", "k", ""])
    backlog.lease(4, 1000, 10.0, NO_STREAM)
    backlog.ack(at(1, 2, 3))
    assert backlog.needed_mask().tolist() == [True, False, True, False]
    backlog.ack(at(0))
    assert not backlog.needed_mask().any()
