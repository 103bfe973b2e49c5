"""Time as a dependency, so that tests can own it; runs everywhere."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What Penstock asks of time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; for durations and deadlines."""
        ...

    def time(self) -> float:
        """Seconds since the epoch; for what other machines see."""
        ...

    def wait(self, seconds: float) -> None:
        """Block this thread for so long."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def time(self) -> float:
        """See `Clock`."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to, or when somebody waits on it. For tests."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        # Protects _now: a test advances it while server threads read it.
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """See `Clock`."""
        with self._lock:
            return self._now

    def time(self) -> float:
        """See `Clock`."""
        return self.monotonic()

    def wait(self, seconds: float) -> None:
        """Return at once, with the clock moved on by that much."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock on."""
        with self._lock:
            self._now += seconds


SYSTEM_CLOCK = SystemClock()
