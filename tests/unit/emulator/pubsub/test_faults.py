"""Faults: which strike, how often, and which cannot be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.emulator.pubsub.faults import Fault, FaultPlan


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kind": "boom"}, "no fault 'boom'.*error, latency, cut"),
        ({"kind": "error", "code": "NOSUCH"}, "NOSUCH"),
        ({"kind": "error", "code": "OK"}, "OK"),
        ({"kind": "fail_ack_ids", "code": "UNAVAILABLE"}, "TRANSIENT_FAILURE_"),
        ({"kind": "error", "count": 0}, "count is 0"),
        ({"kind": "error", "probability": 1.5}, "probability is 1.5"),
        ({"kind": "error", "probability": -0.1}, "probability is -0.1"),
        ({"kind": "latency", "seconds": -1}, "seconds is -1"),
    ],
)
def test_fault_that_makes_no_sense_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Fault(**wrong)


def test_code_has_a_default_for_each_kind() -> None:
    assert Fault(kind="error").code == "UNAVAILABLE"
    assert Fault(kind="fail_ack_ids").code == "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"


def test_fault_survives_the_way_to_another_process() -> None:
    fault = Fault(kind="cut", method="StreamingPull", count=3, probability=0.5, seconds=2.0)
    assert Fault(**fault.to_json()) == fault


def test_draw_respects_kind_method_and_count() -> None:
    plan = FaultPlan()
    fault = Fault(kind="error", method="Publish", count=2)
    plan.add(fault)
    assert plan.draw("latency", "Publish") is None
    assert plan.draw("error", "Pull") is None
    assert [plan.draw("error", "Publish") for _ in range(3)] == [fault, fault, None]
    assert not plan
    assert plan.struck == {"error": 2}


def test_first_fault_that_strikes_is_drawn() -> None:
    plan = FaultPlan()
    never = Fault(kind="error", probability=0.0)
    always = Fault(kind="error", code="ABORTED")
    plan.add(never)
    plan.add(always)
    assert plan.draw("error", "Publish") is always


def test_cut_waits_for_its_age() -> None:
    plan = FaultPlan()
    plan.add(Fault(kind="cut", seconds=10.0))
    assert plan.draw("cut", "StreamingPull", 9.9) is None
    assert plan.draw("cut", "StreamingPull", 10.0) is not None


def test_probability_is_repeatable_by_seed() -> None:
    def drawn(seed: int) -> list[bool]:
        plan = FaultPlan(seed)
        plan.add(Fault(kind="error", probability=0.5))
        return [plan.draw("error", "Publish") is not None for _ in range(200)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 60 < sum(drawn(1)) < 140


def test_cleared_plan_is_empty() -> None:
    plan = FaultPlan()
    plan.add(Fault(kind="error"))
    assert plan
    plan.clear()
    assert not plan
    assert plan.draw("error", "Publish") is None
