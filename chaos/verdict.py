"""What a run has shown: the figures, the judgement, the table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
MODES = (AT_LEAST_ONCE, EXACTLY_ONCE)


@dataclass
class Verdict:
    """The outcome of a run."""

    mode: str
    seed: int
    minutes: float
    # Of the subscription, not of the mode.
    has_exactly_once_delivery: bool
    actions: dict[str, int] = field(default_factory=dict)
    missed_actions: int = 0
    faults_struck: dict[str, int] = field(default_factory=dict)
    driver_restarts: int = 0
    failed_queries: int = 0
    hangs: int = 0
    sent: int = 0
    received: int = 0
    batches: int = 0
    batches_replaced: int = 0
    redelivered: int = 0
    losses: int = 0
    duplicates: int = 0
    unacked: int = 0
    outstanding: int = 0
    drain_seconds: float = 0.0
    # Objects in the spool at the end, and how many of them the source itself calls suspect.
    spool_objects: int = 0
    spool_suspects: int = 0
    processes_left: list[str] = field(default_factory=list)
    directories_left: int = 0

    @property
    def reasons(self) -> list[str]:
        """Why the run has failed; empty if it has passed."""
        found = {
            f"{self.losses} messages lost": self.losses,
            f"{self.duplicates} duplicates": self.mode == EXACTLY_ONCE and self.duplicates,
            f"{self.unacked} messages not acknowledged": self.unacked,
            f"{self.hangs} times the driver did not answer": self.hangs,
            f"{self.spool_objects} objects in the spool, {self.spool_suspects} suspect": (
                self.spool_objects > self.spool_suspects
            ),
            f"processes left: {', '.join(self.processes_left)}": self.processes_left,
            f"{self.directories_left} agents' directories left": self.directories_left,
        }
        return [reason for reason, is_so in found.items() if is_so]

    @property
    def is_passed(self) -> bool:
        """Whether the mode has kept its promise."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Give everything, with the judgement."""
        return {
            **dataclasses.asdict(self),
            "is_passed": self.is_passed,
            "reasons": self.reasons,
        }

    def table(self) -> str:
        """Show the figures."""
        delivery = "with" if self.has_exactly_once_delivery else "without"
        struck = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults_struck.items()))
        rows: list[tuple[str, Any]] = [
            ("mode", f"{self.mode}, a subscription {delivery} exactly-once delivery"),
            ("seed", f"{self.seed}, {self.minutes:g} minutes"),
            *sorted(self.actions.items()),
            ("actions without a victim", self.missed_actions),
            ("faults that struck", struck or "none"),
            ("drivers started again", self.driver_restarts),
            ("queries that failed", self.failed_queries),
            ("messages sent", f"{self.sent:,}"),
            ("messages received", f"{self.received:,}"),
            ("redelivered by the service", f"{self.redelivered:,}"),
            ("batches with rows", f"{self.batches:,}, {self.batches_replaced} of them run again"),
            ("seconds to the last message", f"{self.drain_seconds:.1f}"),
            ("duplicates", f"{self.duplicates:,}"),
            ("losses", f"{self.losses:,}"),
            ("not acknowledged", f"{self.unacked:,}, under lease {self.outstanding:,}"),
            ("spool objects left", f"{self.spool_objects}, suspect {self.spool_suspects}"),
            ("processes left", len(self.processes_left)),
            ("agents' directories left", self.directories_left),
            ("verdict", "passed" if self.is_passed else "FAILED: " + "; ".join(self.reasons)),
        ]
        return "\n".join(f"{name:30} {value}" for name, value in rows)
