"""The clocks: the machine's, and the one that tests own."""

from __future__ import annotations

import threading
import time

import pytest

from penstock._core.clock import SYSTEM_CLOCK, Clock, ManualClock, SystemClock


def test_system_clock_is_the_machines() -> None:
    clock: Clock = SYSTEM_CLOCK
    assert isinstance(clock, SystemClock)
    assert clock.time() == pytest.approx(time.time(), abs=5)
    before = clock.monotonic()
    clock.wait(0.01)
    assert clock.monotonic() - before >= 0.009


def test_manual_clock_stands_still() -> None:
    clock: Clock = ManualClock(100.0)
    assert [clock.monotonic(), clock.time(), clock.monotonic()] == [100.0, 100.0, 100.0]


def test_manual_clock_moves_when_told() -> None:
    clock = ManualClock(100.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.time()) == (102.5, 102.5)


def test_waiting_on_a_manual_clock_moves_it_and_returns_at_once() -> None:
    clock = ManualClock(0.0)
    started = time.monotonic()
    clock.wait(3600.0)
    assert clock.monotonic() == 3600.0
    assert time.monotonic() - started < 5


def test_manual_clock_loses_no_step_between_threads() -> None:
    clock = ManualClock(0.0)

    def advance() -> None:
        for _ in range(1000):
            clock.advance(1.0)

    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() == 4000.0
