"""What is in the spool, who writes to it, what may leave it; pure. Runs in the coordinator's loop.

The rule that keeps batches exact: an object is the content of its task, once and for all. One agent
at a time may write it; it is acknowledged when it is there; it is removed when its batch is
committed AND the service has confirmed every acknowledgement. Where that is not sure, because an
agent died or stood still, the object's messages are suspects: an agent that gets one again
acknowledges and drops it, and the object stays for a while.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from penstock.pubsub.agent.protocol import Noted, Verdict
from penstock.pubsub.spool.format import SpoolKey


@dataclass
class _Entry:
    # Who may write it, or has written it; None: whoever asks next.
    agent: str | None
    # Since when, by the coordinator's clock.
    claimed_at: float = 0.0
    rows: int = 0
    size: int = 0
    written_at: float = 0.0
    is_durable: bool = False
    is_acked: bool = False
    # When it became suspect.
    suspect_at: float | None = None


@dataclass(frozen=True)
class SpoolFigures:
    """The spool in numbers."""

    objects: int = 0
    size: int = 0
    oldest_at: float | None = None
    suspects: int = 0


class SpoolLedger:
    """All objects, and those that are being written."""

    def __init__(self, suspect_seconds: float) -> None:
        self.committed = 0
        self._suspect_seconds = suspect_seconds
        self._entries: dict[SpoolKey, _Entry] = {}
        self._rows_by_tick: dict[int, int] = defaultdict(int)

    @property
    def open_count(self) -> int:
        """Objects whose batch is not committed."""
        return sum(key.tick > self.committed for key in self._entries)

    @property
    def settling_count(self) -> int:
        """Objects of committed batches that a living agent still acknowledges."""
        return sum(
            key.tick <= self.committed and not entry.is_acked and entry.suspect_at is None
            for key, entry in self._entries.items()
        )

    def rows_of(self, tick: int) -> int:
        """Count the rows that tasks of a batch have got."""
        return self._rows_by_tick.get(tick, 0)

    def restore(self, key: SpoolKey, size: int, written_at: float, now: float) -> None:
        """Take in an object of an earlier run: nobody knows what of it was acknowledged."""
        self._entries[key] = _Entry(
            None, size=size, written_at=written_at, is_durable=True, suspect_at=now
        )
        # How many rows it has is not known; that there is something to commit is.
        self._rows_by_tick[key.tick] += 1

    def claim(self, agent: str, key: SpoolKey, at: float) -> Verdict:
        """Decide what an agent does whose task asks for its rows, at a time of the loop's clock."""
        if key.tick <= self.committed:
            return Verdict.OVER
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(agent, at)
        if entry.is_durable:
            return Verdict.REPLAY
        if entry.agent is None:
            entry.agent, entry.claimed_at = agent, at
        return Verdict.WRITE if entry.agent == agent else Verdict.WAIT

    def give_up(self, agent: str, key: SpoolKey) -> None:
        """Note that an agent could not write: another one may."""
        entry = self._entries.get(key)
        if entry is not None and entry.agent == agent and not entry.is_durable:
            entry.agent = None

    def durable(
        self, agent: str, key: SpoolKey, rows: int, size: int, now: float, quiet_at: float
    ) -> Noted:
        """Note that an agent has written an object.

        Args:
            agent: who has written it.
            key: which it is.
            rows: how many it has.
            size: its bytes.
            now: by the wall clock.
            quiet_at: when the agent was last quiet for long, by the loop's clock. If that was after
                it began, the leases of the messages may have ended before they were written here.
        """
        if key.tick <= self.committed:
            return Noted.OVER
        entry = self._entries.setdefault(key, _Entry(agent, quiet_at + 1))
        # Only where the claim was its own all the time does nobody else know of the object.
        if not entry.is_durable and entry.agent == agent and entry.claimed_at <= quiet_at:
            return Noted.STALE
        entry.agent = agent
        self._be_durable(key, entry, rows, size, now)
        return Noted.NOTED

    def found(self, key: SpoolKey, rows: int, size: int, now: float) -> bool:
        """Note that an object was there whose writer was never heard of; True if that is new."""
        if key.tick <= self.committed:
            return False
        entry = self._entries.setdefault(key, _Entry(None))
        is_new = not entry.is_durable
        self._be_durable(key, entry, rows, size, now)
        if is_new and not entry.is_acked:
            entry.suspect_at = now
        return is_new

    def _be_durable(self, key: SpoolKey, entry: _Entry, rows: int, size: int, now: float) -> None:
        if not entry.is_durable:
            entry.is_durable, entry.rows, entry.size, entry.written_at = True, rows, size, now
            self._rows_by_tick[key.tick] += rows

    def acked(self, key: SpoolKey) -> None:
        """Note that the service has confirmed every acknowledgement of an object."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_acked = True

    def unsure(self, key: SpoolKey, now: float) -> bool:
        """Note that acknowledgements of an object failed; True if it is suspect from now on."""
        entry = self._entries.get(key)
        if entry is None or entry.is_acked or entry.suspect_at is not None:
            return False
        entry.suspect_at = now
        return True

    def drop_agent(self, agent: str, now: float) -> list[SpoolKey]:
        """Forget an agent that is gone; gives the objects whose messages may come again."""
        suspects = []
        for key, entry in self._entries.items():
            if entry.agent != agent or entry.is_acked:
                continue
            # It may have written one without being able to say so.
            suspects.append(key)
            if entry.is_durable:
                entry.suspect_at = entry.suspect_at or now
            else:
                entry.agent = None
        return suspects

    def suspect_agent(self, agent: str, now: float) -> list[SpoolKey]:
        """Note that an agent is quiet: what it has not acknowledged yet may come to others."""
        found = [
            key
            for key, entry in self._entries.items()
            if entry.agent == agent
            and entry.is_durable
            and not entry.is_acked
            and entry.suspect_at is None
        ]
        for key in found:
            self._entries[key].suspect_at = now
        return found

    def suspects(self) -> list[SpoolKey]:
        """List the objects that an agent which has just come has to know."""
        return [key for key, entry in self._entries.items() if entry.suspect_at is not None]

    def commit(self, tick: int) -> None:
        """Note that Spark has committed all batches up to a tick."""
        self.committed = max(self.committed, tick)
        for key in [k for k, e in self._entries.items() if k.tick <= tick and not e.is_durable]:
            del self._entries[key]
        for old in [t for t in self._rows_by_tick if t <= tick]:
            del self._rows_by_tick[old]

    def removable(self, now: float) -> list[SpoolKey]:
        """List the objects that are needed no more."""
        return [
            key
            for key, entry in self._entries.items()
            if key.tick <= self.committed
            and (entry.is_acked or self._is_cleared(entry.suspect_at, now))
        ]

    def _is_cleared(self, suspect_at: float | None, now: float) -> bool:
        return suspect_at is not None and suspect_at + self._suspect_seconds <= now

    def removed(self, keys: list[SpoolKey]) -> None:
        """Forget objects that are removed."""
        for key in keys:
            self._entries.pop(key, None)

    def figures(self) -> SpoolFigures:
        """Count."""
        durable = [entry for entry in self._entries.values() if entry.is_durable]
        return SpoolFigures(
            objects=len(durable),
            size=sum(entry.size for entry in durable),
            oldest_at=min((entry.written_at for entry in durable), default=None),
            suspects=sum(entry.suspect_at is not None for entry in durable),
        )
