"""The source's offset: a position in the WAL, or the moment around the snapshot; pure.

`start` is before the snapshot. `snapshot` is after it: the stream then begins where the slot
begins, which only the server knows, because a snapshot that is taken again has a new slot.
`wal` is a position: every transaction whose commit record starts before it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import CheckpointError, PenstockError
from penstock.postgres.lsn import format_lsn, parse_lsn

VERSION = 1
START, SNAPSHOT, WAL = "start", "snapshot", "wal"


@dataclass(frozen=True)
class CdcOffset:
    """Where a query stands."""

    phase: str
    slot: str
    # Of the server: positions of another one mean nothing.
    system: str
    lsn: int = 0

    def to_json(self) -> dict[str, Any]:
        """Give the form that Spark writes into the checkpoint."""
        known = {"v": VERSION, "phase": self.phase, "slot": self.slot, "system": self.system}
        return known if self.phase != WAL else {**known, "lsn": format_lsn(self.lsn)}

    @classmethod
    def from_json(cls, value: Any) -> CdcOffset:
        """Read an offset of a checkpoint.

        Raises:
            CheckpointError: it is not one of ours, or of a later version.
        """
        match value:
            case {"v": 1, "phase": "wal", "slot": str(slot), "system": str(system), "lsn": str(at)}:
                try:
                    return cls(WAL, slot, system, parse_lsn(at))
                except (PenstockError, ValueError):
                    raise _foreign() from None
            case {
                "v": 1,
                "phase": ("start" | "snapshot") as phase,
                "slot": str(slot),
                "system": str(system),
            }:
                return cls(phase, slot, system)
            case {"v": int(version)} if version > VERSION:
                raise CheckpointError(
                    "OFFSET_VERSION",
                    "The checkpoint of this query",
                    f"holds offsets of version {version}; this Penstock knows version {VERSION}",
                    "Install the Penstock that wrote it, or a later one",
                )
        raise _foreign()


def _foreign() -> CheckpointError:
    return CheckpointError(
        "OFFSET_FOREIGN",
        "The checkpoint of this query",
        "holds offsets that are not of the PostgreSQL source",
        "Give the query a checkpointLocation of its own",
    )
