"""What a fault may be, and when it strikes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.emulator.snowflake.faults import FaultPlan, SnowflakeFault


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"kind": "sabotage"}, "sabotage"),
        ({"kind": "drop", "method": "nothing"}, "nothing"),
        ({"kind": "error", "status": 200}, "status"),
        ({"kind": "error", "status": "503"}, "status"),
        ({"kind": "latency", "seconds": -1}, "seconds"),
        ({"kind": "latency", "seconds": float("nan")}, "seconds"),
        ({"kind": "drop", "probability": 2}, "probability"),
        ({"kind": "drop", "count": 0}, "count"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SnowflakeFault(**wrong)


def test_a_fault_strikes_as_often_as_it_says_where_it_says() -> None:
    plan = FaultPlan()
    plan.add(SnowflakeFault(kind="drop", method="append_rows", channel="c1", count=2))
    assert plan.draw("drop", "append_rows", "c2") is None
    assert plan.draw("drop", "open_channel", "c1") is None
    assert plan.draw("error", "append_rows", "c1") is None
    assert plan.draw("drop", "append_rows", "C1") is not None
    assert plan.draw("drop", "append_rows", "c1") is not None
    assert plan.draw("drop", "append_rows", "c1") is None
    assert plan.struck == {"drop": 2}


def test_chance_is_repeatable() -> None:
    def strikes(seed: int) -> list[bool]:
        plan = FaultPlan(seed)
        plan.add(SnowflakeFault(kind="drop", probability=0.5))
        return [plan.draw("drop", "query") is not None for _ in range(50)]

    assert strikes(1) == strikes(1)
    assert 0 < sum(strikes(1)) < 50


def test_cleared_faults_strike_no_more() -> None:
    plan = FaultPlan()
    plan.add(SnowflakeFault(kind="drop"))
    plan.clear()
    assert plan.draw("drop", "query") is None
