"""Who may write to the spool, and what may leave it, case by case."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.pubsub.agent.protocol import Noted, Verdict
from penstock.pubsub.source.spool_ledger import SpoolLedger
from penstock.pubsub.spool.format import SpoolKey

KEY = SpoolKey(1, 0)


def ledger() -> SpoolLedger:
    return SpoolLedger(suspect_seconds=100.0)


def note(
    made: SpoolLedger,
    agent: str,
    key: SpoolKey,
    size: int = 100,
    now: float = 0.0,
    quiet_at: float = 0.0,
) -> Noted:
    return made.durable(agent, key, 10, size, now, quiet_at)


def test_the_first_to_ask_writes_and_others_wait() -> None:
    made = ledger()
    assert made.claim("a", KEY, 1.0) is Verdict.WRITE
    assert made.claim("b", KEY, 1.0) is Verdict.WAIT
    assert made.claim("a", KEY, 1.0) is Verdict.WRITE
    assert note(made, "a", KEY) is Noted.NOTED
    assert made.claim("b", KEY, 1.0) is Verdict.REPLAY
    assert made.claim("a", KEY, 1.0) is Verdict.REPLAY


def test_when_a_writer_gives_up_another_one_writes() -> None:
    made = ledger()
    made.claim("a", KEY, 1.0)
    made.give_up("b", KEY)
    assert made.claim("b", KEY, 1.0) is Verdict.WAIT
    made.give_up("a", KEY)
    assert made.claim("b", KEY, 1.0) is Verdict.WRITE


def test_a_batch_that_is_committed_is_over() -> None:
    made = ledger()
    made.claim("a", KEY, 1.0)
    made.commit(1)
    assert made.claim("a", KEY, 1.0) is Verdict.OVER
    assert note(made, "a", KEY) is Noted.OVER
    assert not made.found(KEY, 10, 100, 0.0)
    assert made.figures().objects == 0


def test_an_object_leaves_when_it_is_committed_and_acknowledged() -> None:
    made = ledger()
    made.claim("a", KEY, 1.0)
    note(made, "a", KEY)
    made.acked(KEY)
    assert made.removable(0.0) == []
    made.commit(1)
    assert made.removable(0.0) == [KEY]
    made.removed([KEY])
    assert made.figures().objects == 0


def test_an_object_whose_acknowledgement_is_not_sure_stays_a_while() -> None:
    made = ledger()
    made.claim("a", KEY, 1.0)
    note(made, "a", KEY)
    assert made.drop_agent("a", 50.0) == [KEY]
    made.commit(1)
    assert made.suspects() == [KEY]
    assert made.removable(149.0) == []
    assert made.removable(150.0) == [KEY]


def test_a_failed_acknowledgement_makes_suspects_once() -> None:
    made = ledger()
    made.claim("a", KEY, 1.0)
    note(made, "a", KEY)
    assert made.unsure(KEY, 1.0)
    assert not made.unsure(KEY, 2.0)
    made.commit(1)
    assert made.removable(3.0) == []


def test_the_end_of_an_agent_that_was_writing_lets_another_one_write() -> None:
    """It may have written the object: the next one finds out, and its messages are suspects."""
    made = ledger()
    made.claim("a", KEY, 1.0)
    assert made.drop_agent("a", 1.0) == [KEY]
    assert made.claim("b", KEY, 1.0) is Verdict.WRITE
    assert made.found(KEY, 10, 100, 2.0)
    assert made.suspects() == [KEY]
    assert not made.found(KEY, 10, 100, 3.0)


def test_what_an_agent_wrote_while_it_stood_still_is_not_noted() -> None:
    """The leases of its messages may be over: they may be in another object already."""
    made = ledger()
    made.claim("a", KEY, 5.0)
    assert note(made, "a", KEY, quiet_at=7.0) is Noted.STALE
    assert made.claim("b", KEY, 8.0) is Verdict.WAIT
    made.give_up("a", KEY)
    assert made.claim("a", KEY, 8.0) is Verdict.WRITE
    assert note(made, "a", KEY, quiet_at=7.0) is Noted.NOTED
    # And what is noted stays so.
    assert note(made, "a", KEY, quiet_at=9.0) is Noted.NOTED


def test_an_object_of_which_others_may_know_is_not_taken_away() -> None:
    """Its writer was let go of and came back: others may have found the object meanwhile."""
    made = ledger()
    made.claim("a", KEY, 5.0)
    made.drop_agent("a", 6.0)
    assert note(made, "a", KEY, quiet_at=7.0) is Noted.NOTED


def test_what_a_quiet_agent_has_not_acknowledged_is_suspect() -> None:
    made = ledger()
    keys = [SpoolKey(1, index) for index in range(4)]
    for key, agent in zip(keys, "aaba", strict=True):
        made.claim(agent, key, 1.0)
    for key, agent in zip(keys[:3], "aab", strict=True):
        note(made, agent, key)
    made.acked(keys[0])
    assert made.suspect_agent("a", 2.0) == [keys[1]]
    assert made.suspect_agent("a", 3.0) == []
    assert made.suspects() == [keys[1]]
    # It comes back and acknowledges: the object may leave.
    made.acked(keys[1])
    made.commit(1)
    assert keys[1] in made.removable(4.0)


def test_an_acknowledged_object_is_not_suspect_when_its_agent_ends() -> None:
    made = ledger()
    made.claim("a", KEY, 1.0)
    note(made, "a", KEY)
    made.acked(KEY)
    assert made.drop_agent("a", 1.0) == []


def test_objects_of_an_earlier_run_are_replayed_and_suspect() -> None:
    made = ledger()
    made.restore(KEY, 100, 5.0, 10.0)
    assert made.claim("a", KEY, 1.0) is Verdict.REPLAY
    assert made.suspects() == [KEY]
    assert made.rows_of(1) > 0
    made.commit(1)
    assert made.removable(109.0) == []
    assert made.removable(110.0) == [KEY]


def test_the_spool_in_numbers() -> None:
    made = ledger()
    for index in range(3):
        made.claim("a", SpoolKey(1, index), 1.0)
    note(made, "a", SpoolKey(1, 0), now=7.0)
    note(made, "a", SpoolKey(1, 1), size=50, now=6.0)
    figures = made.figures()
    assert (figures.objects, figures.size, figures.oldest_at) == (2, 150, 6.0)
    assert made.rows_of(1) == 20
    assert made.open_count == 3


class Agents(RuleBasedStateMachine):
    """Agents that claim, write, acknowledge and die; the store decides as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ledger()
        # What is in the store: the messages of each object, as the agent that wrote it.
        self.store: dict[SpoolKey, str] = {}
        self.acked: set[SpoolKey] = set()
        self.gone: set[SpoolKey] = set()
        self.committed = 0

    keys = st.builds(SpoolKey, st.integers(1, 3), st.integers(0, 1))
    names = st.sampled_from("abc")

    @rule(agent=names, key=keys, dies=st.sampled_from(["no", "before", "after"]))
    def fetch(self, agent: str, key: SpoolKey, dies: str) -> None:
        if self.ledger.claim(agent, key, 1.0) is not Verdict.WRITE:
            return
        if dies == "before":
            self.ledger.drop_agent(agent, 0.0)
            return
        is_first = key not in self.store
        self.store.setdefault(key, agent)
        if dies == "after":
            self.ledger.drop_agent(agent, 0.0)
        elif is_first:
            assert note(self.ledger, agent, key) is Noted.NOTED
        else:
            self.ledger.found(key, 1, 1, 0.0)

    @rule(key=keys)
    def acknowledge(self, key: SpoolKey) -> None:
        if key in self.store and self.ledger.claim("z", key, 1.0) is Verdict.REPLAY:
            self.ledger.acked(key)
            self.acked.add(key)

    @rule()
    def commit(self) -> None:
        """Spark commits a batch only when each of its tasks has got its rows."""
        tick = self.committed + 1
        if all(
            self.ledger.claim("z", SpoolKey(tick, index), 1.0) is Verdict.REPLAY
            for index in range(2)
        ):
            self.committed = tick
            self.ledger.commit(tick)

    @rule(now=st.floats(0, 99))
    def remove(self, now: float) -> None:
        keys = self.ledger.removable(now)
        self.ledger.removed(keys)
        for key in keys:
            self.gone.add(key)
            del self.store[key]

    @invariant()
    def nothing_leaves_too_early(self) -> None:
        assert all(key.tick <= self.committed and key in self.acked for key in self.gone)

    @invariant()
    def what_is_not_acknowledged_is_known_to_be_suspect_or_has_a_living_writer(self) -> None:
        for key in set(self.store) - self.acked:
            entry = self.ledger._entries[key]
            assert entry.suspect_at is not None or entry.agent is not None or not entry.is_durable


Agents.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestAgents = Agents.TestCase
