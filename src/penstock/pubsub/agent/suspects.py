"""Messages that are in the spool and may come again; runs in the agent. Safe from any thread.

An agent that died after it had written an object may not have acknowledged its messages. The object
is in its batch, once; so a message of it that comes again is acknowledged and dropped.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.pubsub.encoding import Received
from penstock.pubsub.spool.format import SpoolKey


@dataclass(frozen=True)
class _Group:
    until: float
    ids: frozenset[str]


class Suspects:
    """The ids to look out for, each for a limited time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Protects both below.
        self._lock = threading.Lock()
        self._groups: dict[SpoolKey, _Group] = {}
        self._ids: frozenset[str] = frozenset()

    def knows(self, key: SpoolKey) -> bool:
        """Tell whether an object's ids are here."""
        with self._lock:
            return key in self._groups

    def add(self, key: SpoolKey, batches: list[pa.RecordBatch], now: float) -> frozenset[str]:
        """Look out for an object's messages from now on; gives their ids."""
        ids = frozenset(i for batch in batches for i in batch.column("message_id").to_pylist())
        with self._lock:
            self._groups[key] = _Group(now + self._seconds, ids)
            self._join()
        return ids

    def _join(self) -> None:
        self._ids = frozenset().union(*(group.ids for group in self._groups.values()))

    def expire(self, now: float) -> None:
        """Stop looking for what would have come by now."""
        with self._lock:
            old = [key for key, group in self._groups.items() if group.until <= now]
            for key in old:
                del self._groups[key]
            if old:
                self._join()

    def split(self, received: Received) -> tuple[Received, pa.StringArray | None]:
        """Take suspects out of what was received; gives the rest, and the suspects' ack ids."""
        ids = self._ids
        if not ids or ids.isdisjoint(names := received.rows.column("message_id").to_pylist()):
            return received, None
        mask = np.fromiter((name in ids for name in names), np.bool_, len(names))
        return keep(received, ~mask), received.ack_ids.filter(pa.array(mask))


def keep(received: Received, mask: npt.NDArray[np.bool_]) -> Received:
    """Keep some of the messages, in their order."""
    kept = pa.array(mask)
    return Received(received.rows.filter(kept), received.ack_ids.filter(kept))
