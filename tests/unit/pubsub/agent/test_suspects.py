from __future__ import annotations

from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.agent.suspects import Suspects
from penstock.pubsub.spool.format import SpoolKey
from tests.unit.pubsub.agent.test_reservoir import acks, received


def test_suspects_are_taken_out_of_what_comes() -> None:
    suspects = Suspects(60.0)
    suspects.add(SpoolKey(1, 0), [received([2, 3]).rows], 0.0)
    suspects.add(SpoolKey(1, 1), [received([9]).rows], 0.0)

    passed, dropped = suspects.split(received([1, 2, 3, 4, 9]))

    assert passed.rows.column("message_id").to_pylist() == ["1", "4"]
    assert acks([passed.ack_ids]) == [1, 4]
    assert dropped is not None
    assert acks([dropped]) == [2, 3, 9]


def test_without_suspects_everything_passes_untouched() -> None:
    suspects = Suspects(60.0)
    given = received([1, 2])
    assert suspects.split(given) == (given, None)
    suspects.add(SpoolKey(1, 0), [received([3]).rows], 0.0)
    assert suspects.split(given) == (given, None)


def test_suspicion_ends() -> None:
    suspects = Suspects(60.0)
    suspects.add(SpoolKey(1, 0), [received([1]).rows], 0.0)
    suspects.add(SpoolKey(2, 0), [received([2]).rows], 30.0)
    suspects.expire(60.0)
    assert not suspects.knows(SpoolKey(1, 0))
    assert suspects.knows(SpoolKey(2, 0))
    _, dropped = suspects.split(received([1, 2]))
    assert dropped is not None
    assert acks([dropped]) == [2]


def test_suspects_are_picked_out_of_the_buffer() -> None:
    """What came before it was known to be suspect; what a task has got is left alone."""
    reservoir = Reservoir()
    reservoir.put(received([1, 2]), 0.0, 60.0)
    held = reservoir.take(1, 0, 2, 2**62, 1)
    reservoir.put(received([3, 4]), 0.0, 60.0)
    reservoir.put(received([5]), 0.0, 60.0)

    assert acks(reservoir.pick({"1", "3", "5"})) == [3, 5]

    state = reservoir.state()
    assert (state.buffered_rows, state.held_rows) == (1, 2)
    assert acks(reservoir.ack_ids(held.number)) == [1, 2]
