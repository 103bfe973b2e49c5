"""The plan of a chaos run: decided by its seed, and complete."""

from __future__ import annotations

from itertools import islice
from typing import get_args

from chaos.actions import BREACHES, KINDS, plan

from penstock.emulator.pubsub.faults import FaultKind


def test_a_seed_repeats_its_sequence() -> None:
    def actions(seed: int) -> list[object]:
        return list(islice(plan(seed, with_breaches=True), 200))

    assert actions(5) == actions(5)
    assert actions(5) != actions(6)


def test_every_kind_and_every_fault_comes_soon() -> None:
    found = list(islice(plan(1, with_breaches=True), 60))
    assert {action.kind for action in found} == set(KINDS)
    struck = {action.fault.kind for action in found if action.fault is not None}
    assert struck == set(get_args(FaultKind))


def test_breaches_of_the_service_s_contract_are_only_there_when_asked_for() -> None:
    found = list(islice(plan(1, with_breaches=False), 500))
    assert not {action.fault.kind for action in found if action.fault} & set(BREACHES)


def test_a_victim_is_one_of_those_that_are_there() -> None:
    for action in islice(plan(2, with_breaches=False), 100):
        assert action.choose(["only"]) == "only"
        assert action.choose([1, 2, 3]) in (1, 2, 3)
