"""The pulse: a standstill is noticed once, and only what began after it is trusted."""

from __future__ import annotations

from penstock._core.clock import ManualClock
from penstock.pubsub.agent.pulse import Pulse


def test_a_standstill_is_noticed_by_whoever_looks_first() -> None:
    clock = ManualClock()
    gaps: list[float] = []
    pulse = Pulse(clock, 1.0, lambda: gaps.append(clock.monotonic()))
    began = clock.monotonic()
    clock.advance(0.9)
    assert pulse.is_sound_since(began)
    clock.advance(1.1)
    assert not pulse.is_sound_since(began)
    pulse.beat()
    assert gaps == [clock.monotonic()]


def test_what_began_after_a_standstill_is_sound() -> None:
    clock = ManualClock()
    pulse = Pulse(clock, 1.0)
    clock.advance(5)
    pulse.beat()
    clock.advance(0.1)
    began = clock.monotonic()
    clock.advance(0.5)
    assert pulse.is_sound_since(began)
