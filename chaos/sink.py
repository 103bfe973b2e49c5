"""What the sink holds: read again and again while a run goes on, cheaply."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


@dataclass(frozen=True)
class Batch:
    """One batch's file as it was when it was read."""

    stamp: tuple[int, int]
    # In the order of the rows.
    ids: list[str]


class SinkReader:
    """Reads the files that are new or were replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batches: dict[int, Batch] = {}
        self.replaced = 0

    def look(self) -> None:
        """Read what has changed."""
        for file in sorted(self._folder.glob("*.arrow")):
            facts = file.stat()
            stamp = (facts.st_ino, facts.st_mtime_ns)
            number = int(file.stem)
            known = self._batches.get(number)
            if known is not None and known.stamp == stamp:
                continue
            self.replaced += known is not None
            with file.open("rb") as opened, pa.ipc.open_stream(opened) as reader:
                ids = reader.read_all().column("message_id").to_pylist()
            self._batches[number] = Batch(stamp, ids)

    @property
    def batch_count(self) -> int:
        """How many batches had rows."""
        return len(self._batches)

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return sum(len(batch.ids) for batch in self._batches.values())

    def where(self) -> dict[str, list[int]]:
        """Give the batches that each message is in."""
        found: dict[str, list[int]] = defaultdict(list)
        for number, batch in sorted(self._batches.items()):
            for one in batch.ids:
                found[one].append(number)
        return found
