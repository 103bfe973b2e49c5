"""The driver's end of the links to all agents; runs in the stream reader's process.

A gRPC server on an event loop of its own thread. Every message is applied in that loop, so the
ledger needs no lock; Spark's thread asks through `_run`. It knows deliveries and measurements,
never messages or ack ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

from penstock.errors import PenstockError, WireError
from penstock.pubsub.agent import protocol
from penstock.pubsub.agent.protocol import (
    Answer,
    Decision,
    Order,
    Release,
    Status,
    Stop,
    Suspect,
)
from penstock.pubsub.source.agents import (
    Agent,
    Overview,
    add,
    agent_error,
    count_cores,
    counters_of,
)
from penstock.pubsub.source.ledger import Delivery, Ledger
from penstock.pubsub.source.spool_keeper import SpoolKeeper
from penstock.pubsub.source.spool_ledger import SpoolLedger
from penstock.pubsub.spool.format import SpoolKey

_LOG = logging.getLogger(__name__)
# An agent to which no task has come for so many batches gives its buffer to others.
_PATIENCE_BATCHES = 3
_RELEASE_SECONDS = 10.0
Result = TypeVar("Result")


class Coordinator:
    """Keeps the ledger and talks to the agents."""

    def __init__(
        self,
        committed: int = 0,
        spool: SpoolKeeper | None = None,
        silence_seconds: float = 10.0,
        quiet_seconds: float = 6.0,
    ) -> None:
        """Prepare.

        Args:
            committed: the newest batch that is committed.
            spool: where batches are kept, if they are.
            silence_seconds: an agent that says nothing for so long is let go of.
            quiet_seconds: one that says nothing for so long may have lost leases: well below the
                duration of a lease.
        """
        self._silence_seconds = silence_seconds
        self._quiet_seconds = quiet_seconds
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        self._ledger = Ledger(committed)
        self._spool = spool
        self._agents: dict[str, Agent] = {}
        # What agents that are gone have counted; an agent that comes back counts on by itself.
        self._gone: dict[str, Status] = {}
        self._fatal: PenstockError | None = None
        self._changed = asyncio.Condition()
        self._loop: asyncio.AbstractEventLoop
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        # Held while it stops.
        self._stopping = threading.Lock()

    def start(self) -> None:
        """Listen on a free port of every interface; agents prove themselves by the token."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="penstock-coordinator", daemon=True
        )
        self._thread.start()
        if self._spool is not None:
            self._spool.in_loop = self._in_loop
        self.port = self._run(self._start())

    def _in_loop(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            # The loop is closed: the query has ended.
            self._loop.call_soon_threadsafe(act)

    async def _start(self) -> int:
        self._changed = asyncio.Condition()
        options = [
            ("grpc.max_receive_message_length", protocol.MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
            # Agents ping, to notice a dead driver machine.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        server = grpc.aio.server(options=options)
        handler = grpc.stream_stream_rpc_method_handler(self._link)
        service, method = protocol.LINK_METHOD.strip("/").split("/")
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        port: int = server.add_insecure_port("[::]:0")
        await server.start()
        self._server = server
        self._watch = asyncio.create_task(self._watch_agents())
        return port

    async def _watch_agents(self) -> None:
        """Let go of agents that say nothing any more, though their connection stands."""
        while True:
            await asyncio.sleep(min(self._silence_seconds, self._quiet_seconds) / 4)
            for agent in list(self._agents.values()):
                quiet_seconds = self._loop.time() - agent.heard_at
                if quiet_seconds > self._quiet_seconds and not agent.is_quiet:
                    self._be_quiet(agent)
                if quiet_seconds > self._silence_seconds and not agent.is_hung_up:
                    _LOG.warning("the agent %s is silent", agent.name)
                    agent.hang_up()

    def _be_quiet(self, agent: Agent) -> None:
        """Let the others look out for what an agent that may stand still has not acknowledged."""
        agent.is_quiet, agent.quiet_at = True, self._loop.time()
        if self._spool is not None:
            self._suspect(self._spool.ledger.suspect_agent(agent.name, time.time()))

    def _hear(self, agent: Agent) -> None:
        """Note that an agent says something, and whether it was quiet before."""
        now = self._loop.time()
        if now - agent.heard_at > self._quiet_seconds:
            self._be_quiet(agent)
        agent.heard_at, agent.is_quiet = now, False

    def stop(self) -> None:
        """Tell the agents to end, and close; once more does nothing."""

        async def end() -> None:
            if self._watch is not None:
                self._watch.cancel()
            for agent in self._agents.values():
                agent.outbox.put_nowait(Stop())
            if self._server is not None:
                await self._server.stop(1.0)

        # A signal's thread and Spark's own may both come here; the second waits for the first.
        with self._stopping:
            if self._thread is None:
                return
            self._run(end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5.0)
            if not self._thread.is_alive():
                self._loop.close()
            self._thread = None
            if self._spool is not None:
                self._spool.stop()

    def overview(self, tick: int = 0) -> Overview:
        """Tell how things stand, with the rows that the tasks of one batch have got."""

        async def look() -> Overview:
            total = Status()
            for counted in self._gone.values():
                total = add(total, counted)
            for agent in self._agents.values():
                total = add(total, agent.status)
            spooled = self._spool.ledger.rows_of(tick) if self._spool else 0
            return Overview(
                status=total,
                agents=sum(agent.has_reported for agent in self._agents.values()),
                cores=count_cores(list(self._agents.values())),
                rows=self._ledger.rows_of(tick) + spooled,
                open_deliveries=self._ledger.open_count,
                settling_deliveries=self._ledger.settling_count,
                spool=self._spool.ledger.figures() if self._spool else None,
            )

        return self._run(look())

    def raise_fatal(self) -> None:
        """Raise what an agent could not go on with."""
        if self._fatal is not None:
            raise self._fatal

    def commit(self, tick: int, ttl_batches: int) -> None:
        """Tell the agents what to settle now that a batch is committed."""

        async def order() -> None:
            if self._spool is not None:
                self._spool.commit(tick)
            expired = self._ledger.expire(tick, ttl_batches)
            if expired:
                _LOG.warning("%d deliveries were never confirmed as acknowledged", expired)
            repeated = self._ledger.repeated_rows
            orders = self._ledger.commit(tick)
            if self._ledger.repeated_rows > repeated:
                _LOG.warning(
                    "%d messages of batch %d come again, because their partitions were read more "
                    "than once. After a failed task or with speculation that is as it should be; "
                    "if it is so in every batch, the sink computes the batch several times: call "
                    "persist() on it first",
                    self._ledger.repeated_rows - repeated,
                    tick,
                )
            for name, settlement in orders.items():
                agent = self._agents.get(name)
                if agent is not None:
                    agent.outbox.put_nowait(Order(settlement.ack, settlement.nack))
            for agent in self._agents.values():
                if agent.status.buffered_rows and agent.served_tick + _PATIENCE_BATCHES <= tick:
                    agent.served_tick = tick
                    agent.outbox.put_nowait(Release(_RELEASE_SECONDS))

        self._run(order())

    def wait_for_change(self, seconds: float) -> None:
        """Wait until an agent has told something, or the time is up."""

        async def waiting() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds), self._changed:
                    await self._changed.wait()

        self._run(waiting())

    def wait_settled(self, seconds: float) -> bool:
        """Wait until all orders are carried out; False when the time is up."""

        def is_settled() -> bool:
            is_spooled = self._spool is not None and self._spool.ledger.settling_count
            return not (self._ledger.settling_count or is_spooled)

        return self.wait(lambda _: is_settled(), seconds)

    def wait(self, is_true: Callable[[Ledger], bool], seconds: float) -> bool:
        """Wait until a condition of the ledger holds; False when the time is up."""

        async def waiting() -> bool:
            try:
                async with asyncio.timeout(seconds), self._changed:
                    await self._changed.wait_for(
                        lambda: is_true(self._ledger) or self._fatal is not None
                    )
            except TimeoutError:
                return False
            return True

        return self._run(waiting())

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _link(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        metadata = dict(context.invocation_metadata() or ())
        token = str(metadata.get(protocol.TOKEN_KEY, ""))
        if not hmac.compare_digest(token, self.token):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
        agent: Agent | None = None
        refusal: tuple[grpc.StatusCode, str] | None = None
        try:
            async for payload in requests:
                message = protocol.decode(payload)
                if agent is None:
                    agent = self._welcome(message)
                    agent.heard_at = self._loop.time()
                    agent.open(context)
                else:
                    self._hear(agent)
                    self._apply(agent, message)
                async with self._changed:
                    self._changed.notify_all()
        except WireError as exc:
            refusal = grpc.StatusCode.INVALID_ARGUMENT, str(exc)
        except asyncio.CancelledError:
            if agent is None or not agent.is_hung_up:
                raise
            # gRPC takes a cancelled task for a call that the client has ended: without a status
            # the agent would take its link for sound, and ask here in vain for ever.
            refusal = grpc.StatusCode.UNAVAILABLE, "silent for too long"
        finally:
            if agent is not None and self._agents.get(agent.name) is agent:
                del self._agents[agent.name]
                self._drop(agent.name)
                self._gone[agent.name] = counters_of(agent.status)
            if agent is not None:
                await agent.close()
        if refusal is not None:
            await context.abort(*refusal)

    def _drop(self, name: str) -> None:
        """Forget what an agent has delivered; others look out for what it may have left unacked."""
        self._ledger.drop_agent(name)
        if self._spool is not None:
            self._suspect(self._spool.ledger.drop_agent(name, time.time()))

    def _suspect(self, keys: list[SpoolKey]) -> None:
        if keys:
            for agent in self._agents.values():
                agent.outbox.put_nowait(Suspect([[key.tick, key.index] for key in keys]))

    def _welcome(self, message: Any) -> Agent:
        if not isinstance(message, protocol.Hello):
            raise WireError("LINK", "An agent", "did not introduce itself", "Report this")
        agent = Agent(message.agent, message, served_tick=self._ledger.committed + 1)
        # An agent that connects anew has handed back what it had delivered, even if the end of
        # its former link was not noticed here yet.
        self._drop(agent.name)
        self._gone.pop(agent.name, None)
        self._agents[agent.name] = agent
        if self._spool is not None:
            # Before the greeting: nothing is pulled before it.
            keys = [[key.tick, key.index] for key in self._spool.ledger.suspects()]
            if keys:
                agent.outbox.put_nowait(Suspect(keys))
        # A greeting, by which the agent knows that the link is open.
        agent.outbox.put_nowait(Answer(0, is_yes=True))
        return agent

    def _apply(self, agent: Agent, message: Any) -> None:
        match message:
            case Status():
                agent.status = message
                agent.has_reported = True
                if self._spool is not None:
                    self._spool.clean()
            case protocol.Deliver():
                agent.served_tick = max(agent.served_tick, message.tick)
                noted = self._ledger.deliver(
                    Delivery(
                        agent.name,
                        message.number,
                        message.tick,
                        message.index,
                        message.attempt,
                        message.rows,
                    )
                )
                agent.outbox.put_nowait(Answer(message.ask, noted))
            case protocol.Complete():
                noted = self._ledger.complete(agent.name, message.number)
                agent.outbox.put_nowait(Answer(message.ask, noted))
            case protocol.GaveBack():
                self._ledger.give_back(agent.name, message.number)
            case protocol.Settled():
                self._ledger.settled(agent.name, message.numbers)
            case protocol.Claim() | protocol.Durable():
                self._answer_spool(agent, message)
            case protocol.GaveUp() | protocol.Found() | protocol.Acked():
                self._note_spool(agent, message)
            case protocol.Fatal():
                self._fatal = self._fatal or agent_error(agent, message)
            case _:
                raise WireError("LINK", "An agent", "sent what only we send", "Report this")

    def _answer_spool(self, agent: Agent, message: protocol.Claim | protocol.Durable) -> None:
        ledger = self._spool_ledger()
        key = SpoolKey(message.tick, message.index)
        if isinstance(message, protocol.Claim):
            agent.served_tick = max(agent.served_tick, key.tick)
            verdict = ledger.claim(agent.name, key, self._loop.time())
            agent.outbox.put_nowait(Decision(message.ask, verdict))
        else:
            noted = ledger.durable(
                agent.name, key, message.rows, message.size, time.time(), agent.quiet_at
            )
            agent.outbox.put_nowait(Decision(message.ask, noted))

    def _note_spool(
        self, agent: Agent, message: protocol.GaveUp | protocol.Found | protocol.Acked
    ) -> None:
        ledger = self._spool_ledger()
        key = SpoolKey(message.tick, message.index)
        match message:
            case protocol.GaveUp():
                ledger.give_up(agent.name, key)
            case protocol.Found() if ledger.found(key, message.rows, message.size, time.time()):
                self._suspect([key])
            case protocol.Acked(is_sure=True):
                ledger.acked(key)
            case protocol.Acked() if ledger.unsure(key, time.time()):
                self._suspect([key])

    def _spool_ledger(self) -> SpoolLedger:
        if self._spool is None:
            raise WireError(
                "LINK", "An agent", "speaks of a spool that there is not", "Report this"
            )
        return self._spool.ledger
