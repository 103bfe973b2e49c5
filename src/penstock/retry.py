"""The one place that decides what is tried again, and after how long; runs everywhere.

Only states that pass by themselves are retried. Everything else fails at once: a wrong topic does
not become right by waiting.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# gRPC status codes, by name so that this module needs no SDK. These are the ones Google's own
# client retries for publishing; UNKNOWN and INTERNAL are what a proxy or a broken connection in
# mid-response looks like from here.
TRANSIENT_CODES = frozenset(
    {
        "ABORTED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNKNOWN",
    }
)


def is_transient(code: str) -> bool:
    """Tell whether a call that ended with this gRPC status code is worth sending again."""
    return code in TRANSIENT_CODES


@dataclass(frozen=True)
class Backoff:
    """Exponential growth with full jitter, so that a fleet never retries in step.

    The wait before attempt n is drawn evenly from [0, min(longest, first * factor**n)], but is
    never below `floor`: a draw near zero would make a tight loop.
    """

    first_seconds: float = 0.1
    longest_seconds: float = 30.0
    factor: float = 2.0
    floor_seconds: float = 0.01
    rng: random.Random = field(default_factory=random.Random, compare=False, repr=False)

    def seconds(self, attempt: int) -> float:
        """Draw the wait before retry number `attempt` (the first retry is 0)."""
        # The exponent is bounded because factor**n overflows a float near n = 1024.
        ceiling = min(self.longest_seconds, self.first_seconds * self.factor ** min(attempt, 64))
        return max(self.floor_seconds, self.rng.uniform(0.0, ceiling))

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy on another machine draws from a generator of its own: with this one's state, a
        # fleet that was sent the same object would retry in step after all.
        return type(self), (
            self.first_seconds,
            self.longest_seconds,
            self.factor,
            self.floor_seconds,
        )

    def __iter__(self) -> Iterator[float]:
        attempt = 0
        while True:
            yield self.seconds(attempt)
            attempt += 1
