"""What is tried again, and how long the waits are."""

from __future__ import annotations

import itertools
import pickle
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.retry import TRANSIENT_CODES, Backoff, is_transient


@pytest.mark.parametrize("code", sorted(TRANSIENT_CODES))
def test_states_that_pass_by_themselves_are_retried(code: str) -> None:
    assert is_transient(code)


@pytest.mark.parametrize(
    "code",
    [
        "OK",
        "ALREADY_EXISTS",
        "DATA_LOSS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
        "unavailable",
        "",
    ],
)
def test_everything_else_fails_at_once(code: str) -> None:
    assert not is_transient(code)


def test_each_code_of_grpc_is_decided() -> None:
    grpc = pytest.importorskip("grpc")
    names = {code.name for code in grpc.StatusCode}
    assert names > TRANSIENT_CODES


@given(attempt=st.integers(0, 5000), seed=st.integers())
def test_wait_stays_within_its_bounds(attempt: int, seed: int) -> None:
    backoff = Backoff(0.5, 20.0, 2.0, 0.05, rng=random.Random(seed))
    assert 0.05 <= backoff.seconds(attempt) <= min(20.0, 0.5 * 2.0 ** min(attempt, 30))


def test_ceiling_doubles_until_the_longest() -> None:
    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    waits = itertools.islice(Backoff(0.1, 1.0, rng=Highest()), 6)
    assert list(waits) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_draw_near_zero_is_lifted_to_the_floor() -> None:
    class Lowest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return a

    assert Backoff(floor_seconds=0.02, rng=Lowest()).seconds(3) == 0.02


def test_jitter_is_spread_over_the_whole_range() -> None:
    backoff = Backoff(1.0, 10.0, rng=random.Random(7))
    waits = [backoff.seconds(5) for _ in range(2000)]
    assert statistics.mean(waits) == pytest.approx(5.0, abs=0.3)
    assert min(waits) < 0.2
    assert max(waits) > 9.8


def test_two_backoffs_do_not_wait_in_step() -> None:
    first, second = Backoff(), Backoff()
    assert [first.seconds(9) for _ in range(4)] != [second.seconds(9) for _ in range(4)]


def test_a_copy_sent_to_another_process_does_not_wait_in_step() -> None:
    original = Backoff(0.2, 9.0, 3.0, 0.03)
    copy = pickle.loads(pickle.dumps(original))  # noqa: S301 - our own bytes
    assert copy == original
    assert [original.seconds(9) for _ in range(4)] != [copy.seconds(9) for _ in range(4)]


def test_iteration_starts_anew_each_time() -> None:
    backoff = Backoff(0.001, 100.0, factor=10.0, floor_seconds=0.0, rng=random.Random(1))
    for _ in range(2):
        assert next(iter(backoff)) <= 0.001
