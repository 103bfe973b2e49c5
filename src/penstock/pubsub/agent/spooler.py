"""Serves tasks through the spool: written once, replayed for whoever asks again; runs in the agent.

Of every line below: what is written and not yet noted is found by the next who asks; what is noted
and not yet acknowledged becomes suspect when this agent dies. Nothing is acknowledged before both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa

from penstock._core.clock import Clock
from penstock.errors import ConnectError, PenstockError, SpoolError
from penstock.pubsub.agent.batches import joined
from penstock.pubsub.agent.leases import Settler
from penstock.pubsub.agent.link import Link
from penstock.pubsub.agent.protocol import Found, GaveUp, Noted, Verdict
from penstock.pubsub.agent.reservoir import HeldDelivery, Reservoir
from penstock.pubsub.agent.suspects import Suspects
from penstock.pubsub.spool.format import BrokenObjectError, SpoolKey
from penstock.pubsub.spool.store import SpoolStore

_LOG = logging.getLogger(__name__)
# Another agent is writing: how often, and how long, its object is waited for.
_WAIT_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 60.0


class BatchOverError(Exception):
    """The task is late: its batch is committed."""


class Spooler:
    """One agent's end of the spool."""

    def __init__(
        self,
        store: SpoolStore,
        spool: str,
        reservoir: Reservoir,
        link: Link,
        settler: Settler,
        suspects: Suspects,
        clock: Clock,
        margin_seconds: float = 0.0,
    ) -> None:
        """Prepare.

        Args:
            store: where objects are.
            spool: the id of this query's.
            reservoir: where messages are.
            link: to the coordinator.
            settler: who acknowledges.
            suspects: messages that are in an object already.
            clock: of the leases.
            margin_seconds: a lease must last for so long when an object is begun, so that a moment
                in which this process stands still is noticed before another has the messages.
        """
        self._store = store
        self._spool = spool
        self._reservoir = reservoir
        self._link = link
        self._settler = settler
        self._suspects = suspects
        self._clock = clock
        self._margin_seconds = margin_seconds

    def fetch(self, key: SpoolKey, take: Callable[[], HeldDelivery]) -> list[pa.RecordBatch]:
        """Give a task its rows: those of the object, which is written if there is none.

        Raises:
            BatchOverError: the batch is committed.
            PenstockError: the spool or the coordinator failed; the task has to come again.
        """
        end = self._clock.monotonic() + _LONGEST_WAIT_SECONDS
        while True:
            verdict = self._link.ask_claim(key.tick, key.index)
            if verdict is Verdict.OVER:
                raise BatchOverError
            if verdict is Verdict.WRITE:
                batches = self._write(key, take())
                if batches is None:
                    continue
                return batches
            if verdict is Verdict.REPLAY:
                return self._replay(key)
            if self._clock.monotonic() > end or self._link.ended.wait(_WAIT_SECONDS):
                raise ConnectError(
                    "SPOOL_WAIT",
                    f"Spool object '{key.name}'",
                    "is being written by another executor, and does not appear",
                    "The task is run again by Spark",
                )

    def _write(self, key: SpoolKey, delivery: HeldDelivery) -> list[pa.RecordBatch] | None:
        batches = list(joined(piece.rows for piece in delivery.pieces))
        needed = self._clock.monotonic() + self._margin_seconds
        if not self._reservoir.is_leased(delivery.number, needed):
            # We stood still: these messages may be in another object by now.
            self._reservoir.settle(delivery.number)
            return None
        try:
            size = self._create(key, batches)
        except PenstockError:
            self._reservoir.put_back(delivery.number)
            self._link.tell(GaveUp(key.tick, key.index))
            raise
        if size is None:
            # Written by one who died before it could say so; its messages come again.
            self._reservoir.put_back(delivery.number)
            stored = self._replay(key)
            rows = sum(batch.num_rows for batch in stored)
            size = sum(batch.nbytes for batch in stored)
            self._link.tell(Found(key.tick, key.index, rows, size))
            return stored
        noted = self._note(key, delivery.rows, size)
        if noted is Noted.OVER:
            # Nobody waits for it: without this object the batch was complete.
            self._store.delete(self._spool, [key])
            self._reservoir.put_back(delivery.number)
            raise BatchOverError
        if noted is Noted.STALE:
            # Nobody knows of it: the claim is ours until we give it up.
            self._store.delete(self._spool, [key])
            self._reservoir.settle(delivery.number)
            self._link.tell(GaveUp(key.tick, key.index))
            return None
        self._reservoir.end_read(delivery.number)
        self._settler.acknowledge_object(delivery.number, key, delivery.rows)
        return batches

    def _create(self, key: SpoolKey, batches: list[pa.RecordBatch]) -> int | None:
        size = self._store.create(self._spool, key, batches)
        if size is None:
            try:
                self._store.read(self._spool, key)
            except BrokenObjectError as exc:
                # Its writer died in the middle, so it was never acknowledged; only we may write.
                _LOG.warning("writing %s anew: %s", key.name, exc)
                self._store.delete(self._spool, [key])
                size = self._store.create(self._spool, key, batches)
        return size

    def _note(self, key: SpoolKey, rows: int, size: int) -> Noted:
        """Tell the coordinator; while it cannot be reached the messages stay under lease."""
        while True:
            try:
                return self._link.ask_durable(key.tick, key.index, rows, size)
            except ConnectError:
                if self._link.ended.is_set():
                    raise

    def _replay(self, key: SpoolKey) -> list[pa.RecordBatch]:
        try:
            stored = self._store.read(self._spool, key)
        except BrokenObjectError as exc:
            raise self._lost(key, f"cannot be read: {exc}") from None
        if stored is None:
            raise self._lost(key, "is gone")
        return stored

    def _lost(self, key: SpoolKey, fact: str) -> SpoolError:
        return SpoolError(
            "SPOOL_OBJECT",
            f"Object '{key.name}' of spool '{self._store.location}'",
            f"{fact}, and its messages were acknowledged",
            "Restore it from a backup; or start with a new checkpoint and a new spoolLocation, "
            "which gives these messages up",
        )

    def load(self, keys: list[SpoolKey]) -> None:
        """Look out for the messages of some objects.

        Only of those that the coordinator names: one that nobody has noted may be taken away again.

        Raises:
            SpoolError: the spool cannot be read.
        """
        for key in keys:
            self._load(key)

    def _load(self, key: SpoolKey) -> None:
        if self._suspects.knows(key):
            return
        try:
            stored = self._store.read(self._spool, key)
        except BrokenObjectError:
            # Its writer died in the middle: nothing of it was acknowledged, and it counts for none.
            return
        if stored is not None:
            ids = self._suspects.add(key, stored, self._clock.monotonic())
            self._settler.drop(self._reservoir.pick(ids))
