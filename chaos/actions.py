"""What goes wrong, and when: a sequence that the seed alone decides; pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from penstock.emulator.pubsub.faults import Fault, FaultKind

# How often each kind comes in one round.
_ROUND = {
    "kill worker": 3,
    "kill agent": 3,
    "kill executor": 2,
    "kill reader": 1,
    "kill driver": 1,
    "freeze agent": 2,
    "restart service": 2,
    "fault": 6,
    "stop query": 1,
}
KINDS = tuple(_ROUND)
# A breach of the service's own contract: an acknowledgement that is confirmed and forgotten, and
# the same message twice in one response. No exactly-once reader can be exact on these.
BREACHES = ("lose_ack", "duplicate")
_WAIT_SECONDS = (2.0, 8.0)
_LASTS_SECONDS = {
    "freeze agent": (1.0, 15.0),
    "restart service": (0.5, 5.0),
    "fault": (1.0, 12.0),
}
_ACKING = ("Acknowledge", "ModifyAckDeadline")
_METHODS = ("StreamingPull", *_ACKING)
_PASSING = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "ABORTED", "DEADLINE_EXCEEDED")
_LASTING = ("PERMISSION_DENIED", "FAILED_PRECONDITION")
_REASONS = ("TRANSIENT_FAILURE_SERVICE_UNAVAILABLE", "PERMANENT_FAILURE_INVALID_ACK_ID")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Action:
    """One thing that goes wrong."""

    kind: str
    # Time before it, and how long it lasts.
    wait_seconds: float
    seconds: float
    # Which of several victims, from 0 to 1.
    pick: float
    fault: Fault | None = None

    @property
    def label(self) -> str:
        """What the table counts it as."""
        return self.kind if self.fault is None else f"fault {self.fault.kind}"

    def choose(self, among: Sequence[Item]) -> Item:
        """Choose a victim."""
        return among[int(self.pick * len(among))]


def plan(seed: int, *, with_breaches: bool) -> Iterator[Action]:
    """Give the endless sequence of a seed."""
    rng = random.Random(seed)  # noqa: S311 - repeatable by seed, no secret
    kinds = _deal(rng, [kind for kind, count in _ROUND.items() for _ in range(count)])
    known = [k for k in get_args(FaultKind) if with_breaches or k not in BREACHES]
    faults = _deal(rng, known)
    for kind in kinds:
        wait = rng.uniform(*_WAIT_SECONDS)
        seconds = rng.uniform(*_LASTS_SECONDS.get(kind, (0.0, 0.0)))
        fault = _fault(rng, next(faults)) if kind == "fault" else None
        yield Action(kind, wait, seconds, rng.random(), fault)


def _deal(rng: random.Random, cards: list[Item]) -> Iterator[Item]:
    """Deal all cards in a random order, again and again: none is long in coming."""
    while True:
        yield from rng.sample(cards, len(cards))


def _fault(rng: random.Random, kind: FaultKind) -> Fault:
    method, acking = rng.choice(_METHODS), rng.choice(_ACKING)
    passing, reason = rng.choice(_PASSING), rng.choice(_REASONS)
    code = passing if rng.random() < 0.8 else rng.choice(_LASTING)
    likely, often = {"probability": rng.uniform(0.3, 1.0)}, {"count": rng.randint(1, 20)}
    old, slow = rng.uniform(0.0, 2.0), rng.uniform(0.2, 8.0)
    shapes: dict[FaultKind, dict[str, Any]] = {
        "error": {"method": method, "code": code, **likely},
        "latency": {"method": method, "seconds": slow, **likely},
        "cut": {"method": "StreamingPull", "seconds": old, **often},
        "lose_ack": {"method": "Acknowledge", **often},
        "lose_response": {"method": acking, "code": passing, **often},
        "duplicate": {"method": "StreamingPull", **often},
        "fail_ack_ids": {"method": acking, "code": reason, **likely},
    }
    return Fault(kind=kind, **shapes[kind])
