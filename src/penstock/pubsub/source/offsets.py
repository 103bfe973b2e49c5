"""The source's offset: how many batches were planned; stored in checkpoints, pure.

Pub/Sub has no positions. A tick only numbers batches, so that each delivery can be told which batch
it belongs to; what is in a batch is decided when its tasks fetch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import CheckpointError

VERSION = 1


@dataclass(frozen=True, order=True)
class PubSubOffset:
    """The number of the newest planned batch; 0 before the first."""

    tick: int

    def to_json(self) -> dict[str, Any]:
        """Give the form that Spark writes into the checkpoint."""
        return {"v": VERSION, "tick": self.tick}

    @classmethod
    def from_json(cls, value: Any) -> PubSubOffset:
        """Read an offset of a checkpoint.

        Raises:
            CheckpointError: it is not one of ours, or of a later version.
        """
        if isinstance(value, dict):
            version, tick = value.get("v"), value.get("tick")
            if version == VERSION and type(tick) is int and tick >= 0:
                return cls(tick)
            if type(version) is int and version > VERSION:
                raise CheckpointError(
                    "OFFSET_VERSION",
                    "The checkpoint of this query",
                    f"holds offsets of version {version}; this Penstock knows version {VERSION}",
                    "Install the Penstock that wrote it, or a later one",
                )
        raise CheckpointError(
            "OFFSET_FOREIGN",
            "The checkpoint of this query",
            "holds offsets that are not of the Pub/Sub source",
            "Give the query a checkpointLocation of its own",
        )
