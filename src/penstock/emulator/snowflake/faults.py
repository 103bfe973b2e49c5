"""Faults that the emulator commits on request; runs in the emulator, and in tests that ask for it.

A fault names what goes wrong, for which endpoint and channel, how often or how likely.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from typing import Any, Literal, get_args

SnowflakeFaultKind = Literal[
    "error", "latency", "drop", "lose_response", "delay_commit", "freeze_channel"
]

# What a fault may name. The first eight are of Snowpipe Streaming, the last three of SQL.
ENDPOINTS = (
    "hostname",
    "token",
    "telemetry",
    "pipe_info",
    "open_channel",
    "append_rows",
    "channel_status",
    "drop_channel",
    "login",
    "query",
    "session",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnowflakeFault:
    """One thing that shall go wrong.

    Kinds:
        error: the request fails with HTTP `status` and `code` before any work is done.
        latency: the request waits `seconds` before it works.
        drop: the connection is cut before any work is done.
        lose_response: the work is done, then the connection is cut.
        delay_commit: rows of an accepted request are in the table, and the committed offset token
            moves, only after `seconds`; later rows of the channel wait for them.
        freeze_channel: rows of the channel are accepted and then lost, its status stays SUCCESS,
            and its committed offset token does not move until it is opened again.

    `method` is the name of an endpoint (open_channel, append_rows, channel_status, query, ...), or
    * for any. `channel` is the name of a channel, or * for any.
    """

    kind: SnowflakeFaultKind
    method: str = "*"
    channel: str = "*"
    status: int = 503
    code: str = "INJECTED_FAULT"
    message: str = "injected fault"
    count: int | None = None
    probability: float = 1.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(SnowflakeFaultKind):
            known = ", ".join(get_args(SnowflakeFaultKind))
            raise ValueError(f"there is no fault {self.kind!r}; the kinds are {known}")
        if self.method != "*" and self.method not in ENDPOINTS:
            raise ValueError(
                f"there is no endpoint {self.method!r}; they are {', '.join(ENDPOINTS)}"
            )
        if not isinstance(self.status, int) or not 400 <= self.status <= 599:
            raise ValueError(f"status is {self.status!r}, not the number of an HTTP error")
        if not isinstance(self.seconds, int | float) or not 0 <= self.seconds < float("inf"):
            raise ValueError(f"seconds is {self.seconds!r}, not a number of at least 0")
        if not isinstance(self.probability, int | float) or not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"probability is {self.probability!r}, not between 0 and 1")
        if self.count is not None and (not isinstance(self.count, int) or self.count < 1):
            raise ValueError(f"count is {self.count!r}, not at least 1")

    def to_json(self) -> dict[str, Any]:
        """Give the form that travels to an emulator in another process."""
        return dataclasses.asdict(self)


class FaultPlan:
    """The faults in force; draws decide whether one strikes now. Safe from any thread."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable by seed, no secret
        self._left: list[tuple[SnowflakeFault, list[int | None]]] = []
        self._lock = threading.Lock()
        self.struck: dict[str, int] = {}

    def add(self, fault: SnowflakeFault) -> None:
        """Put a fault in force."""
        with self._lock:
            self._left.append((fault, [fault.count]))

    def clear(self) -> None:
        """Take all faults back."""
        with self._lock:
            self._left.clear()

    def draw(
        self, kind: SnowflakeFaultKind, method: str, channel: str = ""
    ) -> SnowflakeFault | None:
        """Give the fault of this kind that strikes this request, if one does."""
        with self._lock:
            for entry in self._left:
                fault, left = entry
                if fault.kind != kind or fault.method not in ("*", method):
                    continue
                if fault.channel != "*" and fault.channel.upper() != channel.upper():
                    continue
                if fault.probability < 1.0 and self._rng.random() >= fault.probability:
                    continue
                if left[0] is not None:
                    left[0] -= 1
                    if left[0] == 0:
                        self._left.remove(entry)
                self.struck[kind] = self.struck.get(kind, 0) + 1
                return fault
        return None
