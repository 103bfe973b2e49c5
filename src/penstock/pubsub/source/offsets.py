"""The source's offset: how many batches were planned; stored in checkpoints, pure.

Pub/Sub has no positions. A tick only numbers batches, so that each delivery can be told which batch
it belongs to; what is in a batch is decided when its tasks fetch. With a spool the offset also
fixes the number of tasks, so that a batch that is run again has the same, and names the spool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import CheckpointError

# Of offsets without, and with, a spool: who knows only the first must not go on from the second.
VERSION = 1
SPOOL_VERSION = 2


@dataclass(frozen=True)
class PubSubOffset:
    """The number of the newest planned batch; 0 before the first."""

    tick: int
    # With a spool: how many tasks the batch has, and the spool's id.
    partitions: int | None = None
    spool: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the form that Spark writes into the checkpoint."""
        if self.spool is None:
            return {"v": VERSION, "tick": self.tick}
        return {
            "v": SPOOL_VERSION,
            "tick": self.tick,
            "partitions": self.partitions or 0,
            "spool": self.spool,
        }

    @classmethod
    def from_json(cls, value: Any) -> PubSubOffset:
        """Read an offset of a checkpoint.

        Raises:
            CheckpointError: it is not one of ours, or of a later version.
        """
        if isinstance(value, dict):
            version = value.get("v")
            match value:
                case {"v": 1, "tick": tick} if _is_count(tick):
                    return cls(tick)
                case {"v": 2, "tick": tick, "partitions": partitions, "spool": str(spool)} if (
                    _is_count(tick) and _is_count(partitions) and spool.isalnum()
                ):
                    return cls(tick, partitions, spool)
            if type(version) is int and version > SPOOL_VERSION:
                raise CheckpointError(
                    "OFFSET_VERSION",
                    "The checkpoint of this query",
                    f"holds offsets of version {version}; this Penstock knows versions up to "
                    f"{SPOOL_VERSION}",
                    "Install the Penstock that wrote it, or a later one",
                )
        raise CheckpointError(
            "OFFSET_FOREIGN",
            "The checkpoint of this query",
            "holds offsets that are not of the Pub/Sub source",
            "Give the query a checkpointLocation of its own",
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
