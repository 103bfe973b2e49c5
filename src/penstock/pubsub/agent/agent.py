"""Puts the agent's parts together and ends them in order; runs in the agent process."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from penstock._core.clock import SYSTEM_CLOCK
from penstock._core.memory import resident_bytes, trim_malloc
from penstock._core.processes import ProcessWatch
from penstock.errors import PenstockError
from penstock.pubsub.agent import protocol
from penstock.pubsub.agent.config import AgentConfig
from penstock.pubsub.agent.launcher import locked, log_tail, mark_alive
from penstock.pubsub.agent.leases import AckSender, LeaseKeeper, Settler
from penstock.pubsub.agent.link import Link, LinkEvents
from penstock.pubsub.agent.puller import Puller, PullerThread, PullLimits
from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.agent.server import AgentServer
from penstock.pubsub.agent.spooler import Spooler
from penstock.pubsub.agent.suspects import Suspects
from penstock.pubsub.client import PubSubClient
from penstock.pubsub.encoding import Received
from penstock.pubsub.source.options import PubSubSourceOptions
from penstock.pubsub.spool.format import SpoolKey
from penstock.pubsub.spool.store import SpoolStore

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_IDLE_SECONDS = 3.0
# A burst of responses makes one report.
_REPORT_DELAY_SECONDS = 0.02
# How long an agent that ends tries to hand back what it holds.
_END_SECONDS = 10.0
# When a driver dies, all its executors do. An agent that handed back at once would give to one that
# ends next, and each such pass counts as a delivery attempt.
_PAUSE_SECONDS = 1.0
# Why streams are closed.
_NO_LINK, _NO_TASKS, _NO_SPOOL = "no link to the driver", "no tasks here", "no spool"


class Agent:
    """One agent: its parts, its reports, its end."""

    def __init__(self, config: AgentConfig, directory: Path) -> None:
        self._directory = directory
        self._clock = SYSTEM_CLOCK
        self._options = PubSubSourceOptions.parse(config.options)
        self._failure: PenstockError | None = None
        self._reservoir = Reservoir(
            is_ordered=config.is_ordered,
            cutoff_us=config.cutoff_us,
            most_bytes_per_batch=self._options.max_outstanding_bytes // 3,
        )
        self._client = PubSubClient(self._options)
        self._sender = AckSender(self._client, config.subscription, self._clock)
        self._settler = Settler(
            self._reservoir, self._sender, self._on_settled, self._on_object_acked
        )
        lease_seconds = int(self._options.lease_duration)
        # Leases are prolonged when half of them is left. One with less than this left was not, and
        # others have to learn of what is in the spool before it ends.
        self._margin_seconds = lease_seconds / 5
        # Objects of which the coordinator was warned, by delivery.
        self._warned: set[int] = set()
        self._keeper = LeaseKeeper(self._reservoir, self._sender, self._clock, lease_seconds)
        name = f"{socket.gethostname()}-{os.getpid()}"
        self._link = Link(
            config.coordinator,
            config.token,
            _hello(name),
            LinkEvents(
                on_order=lambda order: self._settler.order(order.ack, order.nack),
                on_release=self._on_release,
                on_suspect=self._on_suspect,
                on_open=lambda: self._pulling.open(_NO_LINK),
                on_lost=self._on_link_lost,
            ),
            self._options.coordinator_timeout,
        )
        streams = self._options.streams_per_executor
        limits = PullLimits(
            lease_seconds,
            max(1, self._options.max_outstanding_messages // streams),
            max(1, self._options.max_outstanding_bytes // streams),
            self._options.max_outstanding_bytes,
        )
        pullers = [
            Puller(
                config.subscription,
                # Streams of one client id share what the service sends.
                name,
                self._reservoir,
                limits,
                self._clock,
                self._changed,
                self._fail,
                self._screen,
            )
            for _ in range(streams)
        ]
        self._pulling = PullerThread(
            self._options, pullers, self._fail, self._clock, lease_seconds / 10
        )
        # Nothing is pulled that the coordinator would not hear of.
        self._pulling.close(_NO_LINK)
        self._trimmed_at = 0.0
        self._report_due = threading.Event()
        self._socket = directory / "agent.sock"
        self._suspects = Suspects(self._options.suspect_duration)
        self._spooler = self._make_spooler(config.spool)
        self._server = AgentServer(
            f"grpc+unix://{self._socket}",
            self._reservoir,
            self._link,
            self.report,
            self._failure_text,
            self._spooler,
            self._shed,
        )
        self._mark = mark_alive(directory)
        self._parent = ProcessWatch(config.parent)

    def _make_spooler(self, spool: str | None) -> Spooler | None:
        if spool is None or self._options.spool_location is None:
            return None
        return Spooler(
            SpoolStore(self._options.spool_location),
            spool,
            self._reservoir,
            self._link,
            self._settler,
            self._suspects,
            self._clock,
            self._margin_seconds,
        )

    def run(self, ready: Callable[[], None]) -> None:
        """Work until the executor, the query or a signal ends it; then hand everything back."""
        ended = self._link.ended
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        self._link.start()
        self._settler.start()
        self._keeper.start()
        ready()
        # Agents of a large cluster start together; the service should not see them so.
        ended.wait(random.uniform(0.0, self._options.jitter))  # noqa: S311 - no secret
        self._pulling.start()
        self.report()
        while not ended.is_set() and self._parent.is_alive():
            self._report_due.wait(_LOOK_SECONDS)
            if self._report_due.is_set():
                ended.wait(_REPORT_DELAY_SECONDS)
            self._report_due.clear()
            self.report()
            self._suspects.expire(self._clock.monotonic())
            self._shed()
            self._warn_of_late_acks()
            self._trim_when_idle()
        self._end()

    def _look_into_spool(self, keys: list[SpoolKey]) -> None:
        """Know what is in some objects before a message of theirs comes."""
        if self._spooler is None:
            return
        try:
            self._spooler.load(keys)
        except PenstockError as error:
            self._fail(error)
            # Told until the query has ended with it.
            self._pulling.close(_NO_SPOOL)

    def _trim_when_idle(self) -> None:
        """Give memory back that the allocators keep; under load they would only ask for it anew."""
        latest = max(pull.last_message_at for pull in self._pulling.counters)
        if latest > self._trimmed_at and self._clock.monotonic() - latest > _IDLE_SECONDS:
            self._trimmed_at = self._clock.monotonic()
            pa.default_memory_pool().release_unused()
            trim_malloc()

    def _end(self) -> None:
        _LOG.info("ending")
        # From here on a task that looks for an agent starts another one.
        self._socket.unlink(missing_ok=True)
        self._pulling.stop()
        self._link.ended.wait(_PAUSE_SECONDS)
        # A service that does not answer must not keep us: the leases end by themselves.
        self._sender.give_up_in(_END_SECONDS)
        self._keeper.stop()
        self._settler.stop()
        # What is not settled goes to another consumer at once, not when its lease ends. But what
        # may be in the spool must not come before the others have learnt that it is.
        is_spooled = self._spooler is not None
        self._sender.hand_back(self._reservoir.release() if is_spooled else self._reservoir.drain())
        self._link.stop()
        self._client.close()
        with locked(self._directory):
            # Another one that was started meanwhile lives in the same directory.
            if not self._socket.exists():
                shutil.rmtree(self._directory, ignore_errors=True)
        # The last agent of this user leaves nothing behind.
        with suppress(OSError):
            self._directory.parent.rmdir()

    def report(self) -> None:
        """Tell the coordinator how things stand."""
        if self._failure is not None:
            # Again and again: the link may have been broken when it was told first.
            self._tell_failure(self._failure)
        state = self._reservoir.state()
        now = self._clock.monotonic()
        pulls = self._pulling.counters
        acks = self._sender.counters
        self._link.tell(
            protocol.Status(
                buffered_rows=state.buffered_rows,
                buffered_bytes=state.buffered_bytes,
                unacked_rows=state.buffered_rows + state.held_rows,
                oldest_unacked_seconds=0.0 if state.oldest_at is None else now - state.oldest_at,
                received=sum(pull.received for pull in pulls),
                redelivered=sum(pull.redelivered for pull in pulls),
                dropped=acks.dropped,
                acked=acks.acked,
                nacked=acks.nacked,
                ack_failures=acks.failures,
                backoffs=acks.backoffs + sum(pull.backoffs for pull in pulls),
                streams=sum(pull.is_open for pull in pulls),
                memory_bytes=resident_bytes(),
                quiet_seconds=min(now - pull.last_message_at for pull in pulls),
            )
        )

    def _shed(self) -> None:
        """Forget what was not prolonged in time: soon the service gives it to another agent."""
        if self._reservoir.expire(self._clock.monotonic() + self._margin_seconds):
            self._pulling.notice_room()

    def _warn_of_late_acks(self) -> None:
        """Tell of objects whose messages may come again before they are acknowledged."""
        if self._spooler is None:
            return
        late = self._reservoir.late(self._clock.monotonic() + self._margin_seconds)
        for delivery in late:
            if delivery.number not in self._warned:
                self._on_object_acked(SpoolKey(delivery.tick, delivery.index), is_sure=False)
        self._warned = {delivery.number for delivery in late}

    def _changed(self) -> None:
        self._report_due.set()

    def _screen(self, received: Received) -> Received:
        passed, suspects = self._suspects.split(received)
        if suspects is not None:
            self._settler.drop([suspects])
        return passed

    def _on_suspect(self, message: protocol.Suspect) -> None:
        self._look_into_spool([SpoolKey(tick, index) for tick, index in message.keys])

    def _on_object_acked(self, key: SpoolKey, *, is_sure: bool) -> None:
        self._link.tell(protocol.Acked(key.tick, key.index, is_sure))

    def _on_settled(self, numbers: list[int]) -> None:
        self._pulling.notice_room()
        self.report()
        if numbers:
            self._link.tell(protocol.Settled(numbers))

    def _on_link_lost(self) -> None:
        """The coordinator has forgotten our deliveries: hand back what tasks have read.

        Nothing is pulled until it is there again, or what is handed back would come back here.
        With a spool, what tasks have read is in it or on its way there, and is not forgotten.
        """
        self._pulling.close(_NO_LINK)
        if self._spooler is None:
            self._settler.order([], self._reservoir.held_numbers())

    def _on_release(self, release: protocol.Release) -> None:
        _LOG.info("no task has come here: handing the buffer back")
        self._pulling.close(_NO_TASKS, release.seconds)
        self._settler.hand_back(self._reservoir.release())

    def _fail(self, error: PenstockError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        _LOG.error("cannot go on: %s", error)
        self._tell_failure(error)

    def _tell_failure(self, error: PenstockError) -> None:
        facts = (error.code, error.subject, error.fact, error.remedy)
        self._link.tell(protocol.Fatal(*facts, log_tail(self._directory)))

    def _failure_text(self) -> str | None:
        if self._failure is None:
            return None
        log = f"--- log of the agent, process {os.getpid()}\n{log_tail(self._directory)}"
        return f"{self._failure}\n{log}"


def _hello(name: str) -> protocol.Hello:
    # Set by Spark on Kubernetes; elsewhere only the machine's cores can be seen from here.
    told = os.environ.get("SPARK_EXECUTOR_CORES", "")
    cores = int(told) if told.isdecimal() else os.cpu_count() or 1
    return protocol.Hello(name, socket.gethostname(), os.getpid(), cores, told.isdecimal())


def run_agent(config: AgentConfig, directory: Path, ready: Callable[[], None]) -> None:
    """Make an agent and run it to its end."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    Agent(config, directory).run(ready)
