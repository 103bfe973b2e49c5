"""Notices that the process stood still: frozen, starved, on a machine that was. Runs in the agent.

What was on its way here meanwhile looks as if it had just been sent, and its lease may be over.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock._core.clock import Clock


class Pulse:
    """Looks at the clock again and again; belongs to the loop."""

    def __init__(
        self, clock: Clock, longest_seconds: float, on_gap: Callable[[], None] = lambda: None
    ) -> None:
        self._clock = clock
        self.longest_seconds = longest_seconds
        self._on_gap = on_gap
        self._beat_at = clock.monotonic()
        self._gap_at = float("-inf")

    def beat(self) -> None:
        """Look now."""
        now = self._clock.monotonic()
        gap, self._beat_at = now - self._beat_at, now
        if gap > self.longest_seconds:
            self._gap_at = now
            self._on_gap()

    def is_sound_since(self, began: float) -> bool:
        """Tell whether the process has not stood still since a time."""
        self.beat()
        return self._gap_at < began
