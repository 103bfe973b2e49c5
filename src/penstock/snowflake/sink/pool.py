"""Clients that a worker keeps between tasks; runs in workers.

A worker runs one task at a time, but its clients are closed by a thread when they have been idle:
Spark ends an idle worker without a word, so waiting for the worker's end would be too late.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

from penstock._core.clock import SYSTEM_CLOCK
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.private_key import read_key
from penstock.snowflake.sink.deadline import within
from penstock.snowflake.sink.sdk import new_client

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 10.0


@dataclass
class PooledClient:
    """A client of one table."""

    client: Any
    key_version: tuple[int, ...]
    is_used: bool = False
    used_at: float = 0.0


class ClientPool:
    """The clients of this process, by options and table."""

    def __init__(self) -> None:
        self._clients: dict[tuple[SnowpipeOptions, TableName], PooledClient] = {}
        # Protects the dictionary and the marks of use, against the thread that closes idle ones.
        self._lock = threading.Condition()
        self._reaper: threading.Thread | None = None

    def take(self, options: SnowpipeOptions, table: TableName) -> PooledClient:
        """Give a client to use, kept or new; until `give_back` or `discard` it is the caller's.

        Raises:
            PenstockError: the key cannot be read, or there was no answer in time.
            StreamingIngestError: the service refused.
        """
        key = read_key(options)
        place = (options, table)
        with self._lock:
            pooled = self._clients.get(place)
            if pooled is not None and not pooled.is_used:
                if pooled.key_version == key.version:
                    pooled.is_used = True
                    return pooled
                # The key was rotated: the client would go on with the old one.
                del self._clients[place]
            else:
                pooled = None
        if pooled is not None:
            _close(pooled)
        subject = f"Snowflake account '{options.account}' at {options.host_name}:{options.port}"
        client = within(options.connect_timeout, subject, lambda: new_client(options, table, key))
        pooled = PooledClient(client, key.version, is_used=True)
        with self._lock:
            if place not in self._clients:
                self._clients[place] = pooled
            self._start_reaper()
        return pooled

    def give_back(self, options: SnowpipeOptions, table: TableName, pooled: PooledClient) -> None:
        """Keep a client for the next task."""
        with self._lock:
            pooled.is_used = False
            pooled.used_at = SYSTEM_CLOCK.monotonic()
            is_kept = self._clients.get((options, table)) is pooled
            self._lock.notify_all()
        if not is_kept:
            _close(pooled)

    def discard(self, options: SnowpipeOptions, table: TableName, pooled: PooledClient) -> None:
        """Close a client that met an error."""
        with self._lock:
            if self._clients.get((options, table)) is pooled:
                del self._clients[options, table]
        _close(pooled)

    def close(self) -> None:
        """Close all clients that are not in use."""
        self._close_idle(everything=True)

    def __len__(self) -> int:
        return len(self._clients)

    def _start_reaper(self) -> None:
        if self._reaper is None:
            self._reaper = threading.Thread(
                target=self._reap, name="penstock-snowpipe-idle", daemon=True
            )
            self._reaper.start()

    def _reap(self) -> None:
        while True:
            with self._lock:
                if not self._clients:
                    self._reaper = None
                    return
                shortest = min(options.idle_timeout for options, _ in self._clients)
                self._lock.wait(shortest / 2)
            self._close_idle()

    def _close_idle(self, *, everything: bool = False) -> None:
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            idle = [
                place
                for place, pooled in self._clients.items()
                if not pooled.is_used
                and (everything or now - pooled.used_at >= place[0].idle_timeout)
            ]
            closed = [self._clients.pop(place) for place in idle]
        for pooled in closed:
            _close(pooled)


def _close(pooled: PooledClient) -> None:
    """Close a client and its channels; nothing is waited for: it is committed, or replayed."""
    client = pooled.client
    try:
        within(
            _CLOSE_SECONDS,
            "The close of a Snowpipe Streaming client",
            lambda: client.close(wait_for_flush=False, timeout_seconds=0),
        )
    except Exception as exc:
        # A client that is dead already; what it held has been sent or will be replayed.
        _log.debug("closing a client: %s", type(exc).__name__)


POOL = ClientPool()
