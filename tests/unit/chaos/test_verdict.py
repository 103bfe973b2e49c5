"""The judgement of a chaos run: each broken promise is named."""

from __future__ import annotations

from typing import Any

import pytest
from chaos.verdict import AT_LEAST_ONCE, EXACTLY_ONCE, Verdict


def verdict(mode: str = EXACTLY_ONCE, **found: Any) -> Verdict:
    return Verdict(mode=mode, seed=1, minutes=1.0, has_exactly_once_delivery=False, **found)


def test_a_run_without_a_fault_has_passed() -> None:
    assert verdict().is_passed
    assert verdict(AT_LEAST_ONCE, duplicates=7).is_passed
    # Objects whose acknowledgement is not sure have to stay for a while.
    assert verdict(spool_objects=3, spool_suspects=3).is_passed


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ({"losses": 1}, "lost"),
        ({"duplicates": 1}, "duplicates"),
        ({"unacked": 1}, "not acknowledged"),
        ({"hangs": 1}, "did not answer"),
        ({"spool_objects": 2, "spool_suspects": 1}, "spool"),
        ({"processes_left": ["agent 1"]}, "agent 1"),
        ({"directories_left": 1}, "directories"),
    ],
)
def test_each_broken_promise_is_a_reason(found: dict[str, Any], word: str) -> None:
    judged = verdict(**found)
    assert not judged.is_passed
    assert [word in reason for reason in judged.reasons] == [True]
    assert "FAILED" in judged.table()
    assert judged.to_json()["is_passed"] is False
