"""An agent and the spool: every line at which it, its link or the store can fail."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock._core.clock import ManualClock
from penstock.errors import ConnectError, SpoolError
from penstock.pubsub.agent.protocol import Found, GaveUp, Noted, Verdict
from penstock.pubsub.agent.reservoir import HeldDelivery, Reservoir
from penstock.pubsub.agent.spooler import BatchOverError, Spooler
from penstock.pubsub.agent.suspects import Suspects
from penstock.pubsub.spool.format import SpoolKey
from penstock.pubsub.spool.store import SpoolStore
from tests.unit.pubsub.agent.test_reservoir import acks, received

KEY = SpoolKey(1, 0)


class FakeLink:
    """A coordinator that answers as it is told."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.durable: list[Noted | Exception] = []
        self.told: list[Any] = []
        self.ended = threading.Event()

    def ask_claim(self, tick: int, index: int) -> Verdict:
        return self.verdicts.pop(0) if self.verdicts else Verdict.WRITE

    def ask_durable(self, tick: int, index: int, rows: int, size: int) -> Noted:
        answer = self.durable.pop(0) if self.durable else Noted.NOTED
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(self, message: Any) -> None:
        self.told.append(message)


class FakeSettler:
    """Notes what would be acknowledged."""

    def __init__(self) -> None:
        self.objects: list[tuple[int, SpoolKey, int]] = []
        self.dropped: list[pa.StringArray] = []

    def acknowledge_object(self, number: int, key: SpoolKey, rows: int) -> None:
        self.objects.append((number, key, rows))

    def drop(self, ack_ids: list[pa.StringArray]) -> None:
        self.dropped += ack_ids


class Parts:
    """A spooler with all it works on."""

    def __init__(self, folder: Path) -> None:
        self.store = SpoolStore(str(folder))
        self.reservoir = Reservoir()
        self.link = FakeLink()
        self.settler = FakeSettler()
        self.suspects = Suspects(60.0)
        self.clock = ManualClock()
        self.spooler = Spooler(
            self.store,
            "id",
            self.reservoir,
            self.link,  # type: ignore[arg-type]
            self.settler,  # type: ignore[arg-type]
            self.suspects,
            self.clock,
        )

    def take(self) -> HeldDelivery:
        return self.reservoir.take(KEY.tick, KEY.index, 2**62, 2**62, 1)

    def fetch(self) -> list[str]:
        batches = self.spooler.fetch(KEY, self.take)
        return [i for batch in batches for i in batch.column("message_id").to_pylist()]

    @property
    def counts(self) -> tuple[int, int]:
        state = self.reservoir.state()
        return state.buffered_rows, state.held_rows


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    made = Parts(tmp_path)
    made.reservoir.put(received([1, 2]), 0.0, math.inf)
    return made


def test_rows_are_written_noted_and_acknowledged_in_this_order(parts: Parts) -> None:
    assert parts.fetch() == ["1", "2"]
    assert parts.store.read("id", KEY) is not None
    assert parts.settler.objects == [(1, KEY, 2)]
    assert parts.counts == (0, 2)


def test_messages_that_may_be_with_another_are_not_written(parts: Parts) -> None:
    """After a standstill the lease of the first two is over; what came later is written."""
    stale = parts.take()
    for piece in stale.pieces:
        piece.leased_until = -math.inf
    taken = iter([stale])

    def take() -> HeldDelivery:
        found = next(taken, None)
        if found is not None:
            return found
        parts.reservoir.put(received([3]), 0.0, math.inf)
        return parts.take()

    batches = parts.spooler.fetch(KEY, take)
    assert [row for batch in batches for row in batch.column("message_id").to_pylist()] == ["3"]


def test_an_object_written_in_a_standstill_is_taken_away_and_written_anew(parts: Parts) -> None:
    """Its messages are forgotten without a word to the service: others may have them."""
    parts.link.durable = [Noted.STALE]
    taken: list[HeldDelivery] = []

    def take() -> HeldDelivery:
        if taken:
            parts.reservoir.put(received([3]), 0.0, math.inf)
        taken.append(parts.take())
        return taken[-1]

    batches = parts.spooler.fetch(KEY, take)
    assert [row for batch in batches for row in batch.column("message_id").to_pylist()] == ["3"]
    assert parts.link.told == [GaveUp(KEY.tick, KEY.index)]
    assert [rows for _, _, rows in parts.settler.objects] == [1]
    stored = parts.store.read("id", KEY)
    assert stored is not None
    assert sum(batch.num_rows for batch in stored) == 1


def test_an_object_is_not_begun_with_leases_that_end_soon(parts: Parts) -> None:
    parts.spooler._margin_seconds = 10.0
    first = parts.take()
    for piece in first.pieces:
        piece.leased_until = parts.clock.monotonic() + 9.0
    waiting = [first]
    batches = parts.spooler.fetch(KEY, lambda: waiting.pop() if waiting else parts.take())
    assert sum(batch.num_rows for batch in batches) == 0


def test_nothing_is_written_for_a_batch_that_is_over(parts: Parts) -> None:
    parts.link.verdicts = [Verdict.OVER]
    with pytest.raises(BatchOverError):
        parts.fetch()
    assert parts.store.read("id", KEY) is None
    assert parts.counts == (2, 0)


def test_a_task_with_nothing_to_read_writes_an_empty_object(parts: Parts) -> None:
    """Or its retry would read something, and nobody could know which of them counted."""
    parts.reservoir.release()
    assert parts.fetch() == []
    assert parts.store.read("id", KEY) == []


def test_what_is_there_is_replayed(parts: Parts) -> None:
    parts.store.create("id", KEY, [received([7]).rows])
    parts.link.verdicts = [Verdict.REPLAY]
    assert parts.fetch() == ["7"]
    assert parts.counts == (2, 0)
    assert parts.settler.objects == []


def test_what_somebody_wrote_and_died_is_found(parts: Parts) -> None:
    parts.store.create("id", KEY, [received([7]).rows])
    assert parts.fetch() == ["7"]
    assert parts.counts == (2, 0)
    assert parts.settler.objects == []
    assert [(told.tick, told.index, told.rows) for told in parts.link.told] == [(1, 0, 1)]
    assert isinstance(parts.link.told[0], Found)


def test_what_somebody_wrote_half_is_written_anew(parts: Parts) -> None:
    parts.store.create("id", KEY, [received([7]).rows])
    path = Path(parts.store.location) / "id" / KEY.name
    path.write_bytes(path.read_bytes()[:-5])
    assert parts.fetch() == ["1", "2"]
    stored = parts.store.read("id", KEY)
    assert stored is not None
    assert stored[0].num_rows == 2


def test_another_writer_is_waited_for(parts: Parts) -> None:
    parts.store.create("id", KEY, [received([7]).rows])
    parts.link.verdicts = [Verdict.WAIT, Verdict.WAIT, Verdict.REPLAY]
    assert parts.fetch() == ["7"]


def test_a_wait_ends_with_the_agent(parts: Parts) -> None:
    parts.link.verdicts = [Verdict.WAIT] * 3
    parts.link.ended.set()
    with pytest.raises(ConnectError, match="SPOOL_WAIT"):
        parts.fetch()


def test_a_batch_that_ended_meanwhile_leaves_nothing_behind(parts: Parts) -> None:
    """Its messages are not in the batch, so the object must not make them suspects."""
    parts.link.durable = [Noted.OVER]
    with pytest.raises(BatchOverError):
        parts.fetch()
    assert parts.store.read("id", KEY) is None
    assert parts.counts == (2, 0)
    assert parts.settler.objects == []


def test_messages_stay_under_lease_while_the_coordinator_is_away(parts: Parts) -> None:
    gone = ConnectError("X", "the coordinator", "is gone", "wait")
    parts.link.durable = [gone, gone, Noted.NOTED]
    assert parts.fetch() == ["1", "2"]
    assert parts.settler.objects == [(1, KEY, 2)]


def test_an_agent_that_ends_before_it_could_tell_acknowledges_nothing(parts: Parts) -> None:
    parts.link.durable = [ConnectError("X", "the coordinator", "is gone", "wait")]
    parts.link.ended.set()
    with pytest.raises(ConnectError):
        parts.fetch()
    assert parts.settler.objects == []
    assert parts.store.read("id", KEY) is not None
    # Not back in the buffer: the object may count, and then they must not come to another task.
    assert parts.counts == (0, 2)


def test_a_store_that_refuses_costs_nothing(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise SpoolError("SPOOL_STORE", "the store", "is full", "make room")

    monkeypatch.setattr(parts.store, "create", refuse)
    with pytest.raises(SpoolError):
        parts.fetch()
    assert parts.link.told == [GaveUp(1, 0)]
    assert parts.counts == (2, 0)


@pytest.mark.parametrize("damage", ["gone", "half"])
def test_a_lost_object_is_an_error_and_no_silence(parts: Parts, damage: str) -> None:
    if damage == "half":
        parts.store.create("id", KEY, [received([7]).rows])
        path = Path(parts.store.location) / "id" / KEY.name
        path.write_bytes(path.read_bytes()[:-5])
    parts.link.verdicts = [Verdict.REPLAY]
    with pytest.raises(SpoolError, match="SPOOL_OBJECT"):
        parts.fetch()


def test_objects_of_others_are_looked_out_for(parts: Parts) -> None:
    parts.store.create("id", SpoolKey(3, 0), [received([2, 8]).rows])
    parts.store.create("id", SpoolKey(3, 1), [received([9]).rows])
    broken = Path(parts.store.location) / "id" / SpoolKey(3, 2).name
    broken.write_bytes(b"half")
    parts.store.create("id", SpoolKey(3, 3), [received([10]).rows])
    # Nobody has noted the last one: its writer may take it away again.
    parts.spooler.load([SpoolKey(3, index) for index in range(3)])
    # One was in the buffer already.
    assert acks(parts.settler.dropped) == [2]
    _, dropped = parts.suspects.split(received([8, 9, 10]))
    assert dropped is not None
    assert acks([dropped]) == [8, 9]
    assert not parts.suspects.knows(SpoolKey(3, 2))
