"""The driver's end of the spool: opens it, and removes what is needed no more.

Runs in the stream reader's process. The ledger belongs to the coordinator's event loop; removing
objects is slow, and has a thread of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from penstock.errors import CheckpointError, PenstockError
from penstock.pubsub.source.offsets import PubSubOffset
from penstock.pubsub.source.spool_ledger import SpoolLedger
from penstock.pubsub.spool.format import SpoolKey
from penstock.pubsub.spool.store import SpoolStore

_LOG = logging.getLogger(__name__)


class SpoolKeeper:
    """One run's spool."""

    def __init__(self, store: SpoolStore, subscription: str, suspect_seconds: float) -> None:
        self.store = store
        self._subscription = subscription
        self.ledger = SpoolLedger(suspect_seconds)
        # The spool's id; known when the first offset is.
        self.spool: str | None = None
        # Runs a function in the loop that owns the ledger; set by whoever starts it.
        self.in_loop: Callable[[Callable[[], None]], None] = lambda act: act()
        self._removals: queue.SimpleQueue[list[SpoolKey] | None] = queue.SimpleQueue()
        self._removing: set[SpoolKey] = set()
        self._thread = threading.Thread(target=self._remove, name="penstock-spool", daemon=True)
        self._thread.start()

    def open(self, offset: PubSubOffset) -> str:
        """Open the spool that belongs to an offset, or a new one; gives its id.

        Raises:
            SpoolError: the location is not this query's, or cannot be used.
        """
        if self.spool is None:
            if offset.spool is None:
                self.spool = self.store.open_new(self._subscription)
            else:
                self.store.open_known(self._subscription, offset.spool)
                self.spool = offset.spool
                now = time.time()
                for found in self.store.list(self.spool):
                    self.ledger.restore(found.key, found.size, found.written_at, now)
        return self.spool

    def commit(self, tick: int) -> None:
        """Spark has committed a batch; in the loop."""
        self.ledger.commit(tick)
        self.clean()

    def clean(self) -> None:
        """Have the objects removed that are needed no more; in the loop."""
        keys = [key for key in self.ledger.removable(time.time()) if key not in self._removing]
        if keys:
            self._removing.update(keys)
            self._removals.put(keys)

    def stop(self) -> None:
        """Finish what was begun."""
        self._removals.put(None)
        self._thread.join(timeout=5.0)

    def _remove(self) -> None:
        while (keys := self._removals.get()) is not None:
            try:
                self.store.delete(self.spool or "", keys)
            except PenstockError as error:
                # They stay, and are tried again after the next batch.
                _LOG.warning("%s", error)
                self.in_loop(partial(self._removing.difference_update, keys))
            else:
                self.in_loop(partial(self._removed, keys))

    def _removed(self, keys: list[SpoolKey]) -> None:
        self.ledger.removed(keys)
        self._removing.difference_update(keys)


def refuse_without_spool(offset: PubSubOffset) -> None:
    """Refuse to go on without the spool that a checkpoint was written with.

    Raises:
        CheckpointError: it was written with one.
    """
    if offset.spool is not None:
        raise CheckpointError(
            "SPOOL_ABSENT",
            "The checkpoint of this query",
            "was written with a spool, and holds batches that only the spool can repeat",
            "Set spoolLocation to the one the query was started with",
        )
