"""Faults that the emulator commits on request; runs in the emulator, and in tests that ask for it.

A fault names what goes wrong, for which method, how often (`count`) or how likely (`probability`).
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Literal, get_args

import grpc

FaultKind = Literal[
    "error", "latency", "cut", "lose_ack", "lose_response", "duplicate", "fail_ack_ids"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that shall go wrong.

    Kinds:
        error: the call fails with `code` before any work is done.
        latency: the call waits `seconds` (of real time) before it works.
        cut: an open StreamingPull that is at least `seconds` old ends with `code`; messages it
            was about to send stay leased.
        lose_ack: acknowledgements are confirmed but not done.
        lose_response: the work is done, but the caller sees `code`.
        duplicate: the messages of a response are in it twice.
        fail_ack_ids: on exactly-once subscriptions, each id fails with the reason `code`, which
            begins with TRANSIENT_FAILURE_ or PERMANENT_FAILURE_.

    `method` is the name of an API method (Publish, Pull, StreamingPull, ...), or * for any.
    """

    kind: FaultKind
    method: str = "*"
    # Empty: UNAVAILABLE, for ack ids TRANSIENT_FAILURE_SERVICE_UNAVAILABLE.
    code: str = ""
    message: str = "injected fault"
    count: int | None = None
    probability: float = 1.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            known = ", ".join(get_args(FaultKind))
            raise ValueError(f"there is no fault {self.kind!r}; the kinds are {known}")
        if not self.code:
            is_reason = self.kind == "fail_ack_ids"
            code = "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE" if is_reason else "UNAVAILABLE"
            object.__setattr__(self, "code", code)
        self._check_code()
        if self.seconds < 0:
            raise ValueError(f"seconds is {self.seconds}, less than 0")
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"probability is {self.probability}, not between 0 and 1")
        if self.count is not None and self.count < 1:
            raise ValueError(f"count is {self.count}, not at least 1")

    def _check_code(self) -> None:
        if self.kind == "fail_ack_ids":
            if not self.code.startswith(("TRANSIENT_FAILURE_", "PERMANENT_FAILURE_")):
                raise ValueError(
                    f"{self.code!r} is no reason of an ack id: it begins with TRANSIENT_FAILURE_ "
                    "or PERMANENT_FAILURE_"
                )
        elif self.code == "OK" or self.code not in grpc.StatusCode.__members__:
            raise ValueError(f"{self.code!r} is not the name of an error of gRPC")

    def to_json(self) -> dict[str, Any]:
        """Give the form that travels to an emulator in another process."""
        return dataclasses.asdict(self)


class FaultPlan:
    """The faults in force; draws decide whether one strikes now."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable by seed, no secret
        self._left: list[tuple[Fault, list[int | None]]] = []
        self.struck: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, fault: Fault) -> None:
        """Put a fault in force."""
        self._left.append((fault, [fault.count]))

    def clear(self) -> None:
        """Take all faults back."""
        self._left.clear()

    def draw(self, kind: FaultKind, method: str, age: float = float("inf")) -> Fault | None:
        """Give the fault of this kind that strikes this call, if one does."""
        for entry in self._left:
            fault, left = entry
            if fault.kind != kind or fault.method not in ("*", method):
                continue
            if kind == "cut" and age < fault.seconds:
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
