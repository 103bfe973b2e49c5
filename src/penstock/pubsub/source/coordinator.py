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
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio

from penstock.errors import AgentError, PenstockError, WireError
from penstock.pubsub.agent import protocol
from penstock.pubsub.agent.protocol import Answer, Order, Release, Status, Stop
from penstock.pubsub.source.ledger import Delivery, Ledger

_LOG = logging.getLogger(__name__)
# An agent to which no task has come for so many batches gives its buffer to others.
_PATIENCE_BATCHES = 3
_RELEASE_SECONDS = 10.0
Result = TypeVar("Result")


@dataclass(frozen=True)
class Overview:
    """All agents together, and the ledger, at one moment."""

    status: Status
    agents: int
    cores: int
    rows: int
    open_deliveries: int
    settling_deliveries: int


@dataclass
class Agent:
    """A connected agent, and what it told last."""

    name: str
    hello: protocol.Hello
    outbox: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    status: Status = field(default_factory=Status)
    has_reported: bool = False
    # The newest batch of which a task has come here; at first the one that is being run.
    served_tick: int = 0


class Coordinator:
    """Keeps the ledger and talks to the agents."""

    def __init__(self, committed: int = 0) -> None:
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        self._ledger = Ledger(committed)
        self._agents: dict[str, Agent] = {}
        # What agents that are gone have counted; an agent that comes back counts on by itself.
        self._gone: dict[str, Status] = {}
        self._fatal: PenstockError | None = None
        self._changed = asyncio.Condition()
        self._loop: asyncio.AbstractEventLoop
        self._server: grpc.aio.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen on a free port of every interface; agents prove themselves by the token."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="penstock-coordinator", daemon=True
        )
        self._thread.start()
        self.port = self._run(self._start())

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
        return port

    def stop(self) -> None:
        """Tell the agents to end, and close; once more does nothing."""

        async def end() -> None:
            for agent in self._agents.values():
                agent.outbox.put_nowait(Stop())
            if self._server is not None:
                await self._server.stop(1.0)

        if self._thread is None:
            return
        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()
        self._thread = None

    def overview(self, tick: int = 0) -> Overview:
        """Tell how things stand, with the rows that the tasks of one batch have got."""

        async def look() -> Overview:
            total = Status()
            for counted in self._gone.values():
                total = _add(total, counted)
            for agent in self._agents.values():
                total = _add(total, agent.status)
            return Overview(
                status=total,
                agents=sum(agent.has_reported for agent in self._agents.values()),
                cores=_cores(list(self._agents.values())),
                rows=self._ledger.rows_of(tick),
                open_deliveries=self._ledger.open_count,
                settling_deliveries=self._ledger.settling_count,
            )

        return self._run(look())

    def raise_fatal(self) -> None:
        """Raise what an agent could not go on with."""
        if self._fatal is not None:
            raise self._fatal

    def commit(self, tick: int, ttl_batches: int) -> None:
        """Tell the agents what to settle now that a batch is committed."""

        async def order() -> None:
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
        sender: asyncio.Task[None] | None = None
        try:
            async for payload in requests:
                message = protocol.decode(payload)
                if agent is None:
                    agent = self._welcome(message)
                    sender = asyncio.create_task(_send(agent, context))
                else:
                    self._apply(agent, message)
                async with self._changed:
                    self._changed.notify_all()
        except WireError as exc:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        finally:
            if sender is not None:
                sender.cancel()
            if agent is not None and self._agents.get(agent.name) is agent:
                del self._agents[agent.name]
                self._ledger.drop_agent(agent.name)
                self._gone[agent.name] = _counters(agent.status)

    def _welcome(self, message: Any) -> Agent:
        if not isinstance(message, protocol.Hello):
            raise WireError("LINK", "An agent", "did not introduce itself", "Report this")
        agent = Agent(message.agent, message, served_tick=self._ledger.committed + 1)
        # An agent that connects anew has handed back what it had delivered, even if the end of
        # its former link was not noticed here yet.
        self._ledger.drop_agent(agent.name)
        self._gone.pop(agent.name, None)
        self._agents[agent.name] = agent
        # A greeting, by which the agent knows that the link is open.
        agent.outbox.put_nowait(Answer(0, is_yes=True))
        return agent

    def _apply(self, agent: Agent, message: Any) -> None:
        match message:
            case Status():
                agent.status = message
                agent.has_reported = True
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
            case protocol.Fatal():
                self._fatal = self._fatal or _agent_error(agent, message)
            case _:
                raise WireError("LINK", "An agent", "sent what only we send", "Report this")


def _agent_error(agent: Agent, message: protocol.Fatal) -> AgentError:
    """Show the user the agent's own error, with the end of its log."""
    facts = message.error
    log = (
        f"--- log of the agent on {agent.hello.host}, process {agent.hello.pid}\n{message.log_tail}"
    )
    return AgentError(facts["code"], facts["subject"], facts["fact"], f"{facts['remedy']}\n{log}")


def _cores(agents: list[Agent]) -> int:
    """Count the executors' cores; agents on one machine share what the machine has."""
    told = sum(agent.hello.cores for agent in agents if agent.hello.is_executor_cores)
    machines = {a.hello.host: a.hello.cores for a in agents if not a.hello.is_executor_cores}
    return told + sum(machines.values())


async def _send(agent: Agent, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await context.write(protocol.encode(await agent.outbox.get()))


def _counters(status: Status) -> Status:
    """Keep of a gone agent what it has counted, not what it held."""
    return Status(
        received=status.received,
        redelivered=status.redelivered,
        acked=status.acked,
        nacked=status.nacked,
        ack_failures=status.ack_failures,
        backoffs=status.backoffs,
    )


def _add(left: Status, right: Status) -> Status:
    return Status(
        buffered_rows=left.buffered_rows + right.buffered_rows,
        buffered_bytes=left.buffered_bytes + right.buffered_bytes,
        unacked_rows=left.unacked_rows + right.unacked_rows,
        oldest_unacked_seconds=max(left.oldest_unacked_seconds, right.oldest_unacked_seconds),
        received=left.received + right.received,
        redelivered=left.redelivered + right.redelivered,
        acked=left.acked + right.acked,
        nacked=left.nacked + right.nacked,
        ack_failures=left.ack_failures + right.ack_failures,
        backoffs=left.backoffs + right.backoffs,
        streams=left.streams + right.streams,
        memory_bytes=left.memory_bytes + right.memory_bytes,
        quiet_seconds=min(left.quiet_seconds, right.quiet_seconds)
        if left.streams
        else right.quiet_seconds,
    )
