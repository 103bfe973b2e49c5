"""What a query's run has on the driver: coordinator, spool, metrics, an orderly end.

Runs in the stream reader's process, once for each run of a query.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from contextlib import closing
from dataclasses import replace

from penstock._core.metrics import serve_metrics
from penstock._core.stopping import end_on_sigterm
from penstock.errors import ResourceError
from penstock.pubsub.agent.config import AgentConfig
from penstock.pubsub.client import PubSubClient
from penstock.pubsub.source.coordinator import Coordinator
from penstock.pubsub.source.metrics import measure, render_metrics
from penstock.pubsub.source.offsets import PubSubOffset
from penstock.pubsub.source.options import PubSubSourceOptions
from penstock.pubsub.source.spool_keeper import SpoolKeeper, refuse_without_spool
from penstock.pubsub.source.subscription import delete, prepare
from penstock.pubsub.spool.store import SpoolStore

_LOG = logging.getLogger(__name__)


class Planning:
    """What the driver's reader has and the tasks' copies have not."""

    def __init__(self, options: PubSubSourceOptions, raw: dict[str, str]) -> None:
        self._options = options
        with closing(PubSubClient(options)) as client:
            is_ordered = prepare(client, options)
        self.spool = (
            SpoolKeeper(
                SpoolStore(options.spool_location), options.subscription, options.suspect_duration
            )
            if options.spool_location is not None
            else None
        )
        # A lease that nobody prolongs has half of its time left at least: an agent that is gone is
        # noticed, and the others have learnt what it may have left, before its messages come again.
        self.coordinator = Coordinator(
            spool=self.spool,
            silence_seconds=max(2.0, options.lease_duration / 6),
            quiet_seconds=options.lease_duration / 10,
        )
        self.coordinator.start()
        host = options.coordinator_host or _own_address()
        self.config = AgentConfig(
            run=uuid.uuid4().hex,
            subscription=options.subscription,
            coordinator=f"{host}:{self.coordinator.port}",
            is_ordered=is_ordered,
            options=raw,
            token=self.coordinator.token,
        )
        self.bootstrapped_at: float | None = None
        self.waiting_since: float | None = None
        self.is_draining = False
        self.has_warned = False
        if options.metrics_port is not None:
            serve_metrics(options.metrics_port, self._metrics, options.subscription)
        end_on_sigterm(self._end)
        if self.spool is None:
            _LOG.warning(
                "at-least-once: messages of %s are acknowledged after Spark's commit, and can come "
                "again after a failure",
                options.subscription,
            )

    def _metrics(self) -> str:
        return render_metrics(measure(self.coordinator.overview()), self._options.subscription)

    def check_fatal(self) -> None:
        """Raise what stops the query: an agent's error, or more streams than allowed."""
        self.coordinator.raise_fatal()
        agents = self.coordinator.overview().agents
        streams = agents * self._options.streams_per_executor
        if streams > self._options.stream_quota:
            raise ResourceError(
                "STREAM_QUOTA",
                f"Subscription '{self._options.subscription}'",
                f"{agents} executors open {streams} streams, and streamQuota is "
                f"{self._options.stream_quota}",
                "Lower streamsPerExecutor, use fewer executors, or raise streamQuota",
            )

    def know_offset(self, offset: PubSubOffset) -> None:
        """Open what belongs to the query's offset; again and again does nothing more.

        Raises:
            PenstockError: the query cannot go on from there.
        """
        if self.spool is None:
            refuse_without_spool(offset)
        elif self.config.spool is None:
            self.config = replace(self.config, spool=self.spool.open(offset))

    def start_draining(self) -> None:
        """Hand out only what was published up to now."""
        self.is_draining = True
        self.config = replace(self.config, cutoff_us=int(time.time() * 1e6))

    def _end(self) -> None:
        self.coordinator.stop()
        if self._options.delete_subscription_on_stream_stop:
            with closing(PubSubClient(self._options)) as client:
                delete(client, self._options.subscription)


def _own_address() -> str:
    """Find the address by which executors reach this machine, as Spark itself does."""
    given = os.environ.get("SPARK_LOCAL_IP") or os.environ.get("SPARK_DRIVER_BIND_ADDRESS")
    if given and given not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return given
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
    return address
