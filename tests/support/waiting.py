"""Waiting for a condition, with a timeout that shows what was seen instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

_POLL_SECONDS = 0.01


def wait_for(
    look: Callable[[], Value],
    until: Callable[[Value], object] = bool,
    seconds: float = 15.0,
) -> Value:
    """Look again and again until what is seen fulfils the condition; give it back."""
    end = time.monotonic() + seconds
    while True:
        seen = look()
        if until(seen):
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"not so within {seconds:g} s; last seen: {seen!r}")
        time.sleep(_POLL_SECONDS)
