"""What an agent is told when it starts; travels in the partition and through a pipe. Secret."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class AgentConfig:
    """Picklable; its `repr` shows no secret, because Spark may log partitions."""

    run: str
    subscription: str
    coordinator: str
    # The process whose end is the agent's end: the executor's Python daemon. 0 until known.
    parent: int = 0
    # Whether messages of one ordering key must go to one task of a batch.
    is_ordered: bool = False
    # Hand out only messages published before this moment; for draining what was there.
    cutoff_us: int | None = None
    # The id of the spool, in the exactly-once mode.
    spool: str | None = None
    options: dict[str, str] = field(default_factory=dict, repr=False)
    token: str = field(default="", repr=False)

    def to_json(self) -> str:
        """Give the form for the pipe."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AgentConfig:
        """Read what came through the pipe."""
        return cls(**json.loads(text))
