"""The agents of a query as its coordinator sees them; runs in the coordinator's event loop."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from penstock.errors import AgentError
from penstock.pubsub.agent import protocol
from penstock.pubsub.agent.protocol import Status
from penstock.pubsub.source.spool_ledger import SpoolFigures

_FAREWELL_SECONDS = 2.0


@dataclass(frozen=True)
class Overview:
    """All agents together, and the ledger, at one moment."""

    status: Status
    agents: int
    cores: int
    rows: int
    open_deliveries: int
    settling_deliveries: int
    spool: SpoolFigures | None = None


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
    # When it last said something, by the loop's clock; and whether we have ended its link.
    heard_at: float = 0.0
    is_hung_up: bool = False
    # When it was last found to have been quiet for long; and whether it is so now.
    quiet_at: float = -math.inf
    is_quiet: bool = False
    _task: asyncio.Task[Any] | None = None
    _sender: asyncio.Task[None] | None = None

    def open(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Send what is put into the outbox; in the task that serves the link."""

        async def send() -> None:
            while (message := await self.outbox.get()) is not None:
                await context.write(protocol.encode(message))

        self._task = asyncio.current_task()
        self._sender = asyncio.create_task(send())

    def hang_up(self) -> None:
        """End the link; the task that serves it tells the agent."""
        self.is_hung_up = True
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Send the rest: gRPC cannot end a call that is writing."""
        if self._sender is not None:
            self.outbox.put_nowait(None)
            await asyncio.wait([self._sender], timeout=_FAREWELL_SECONDS)
            self._sender.cancel()


def agent_error(agent: Agent, message: protocol.Fatal) -> AgentError:
    """Show the user the agent's own error, with the end of its log."""
    log = (
        f"--- log of the agent on {agent.hello.host}, process {agent.hello.pid}\n{message.log_tail}"
    )
    return AgentError(message.code, message.subject, message.fact, f"{message.remedy}\n{log}")


def count_cores(agents: list[Agent]) -> int:
    """Count the executors' cores; agents on one machine share what the machine has."""
    told = sum(agent.hello.cores for agent in agents if agent.hello.is_executor_cores)
    machines = {a.hello.host: a.hello.cores for a in agents if not a.hello.is_executor_cores}
    return told + sum(machines.values())


def counters_of(status: Status) -> Status:
    """Keep of a gone agent what it has counted, not what it held."""
    return Status(
        received=status.received,
        redelivered=status.redelivered,
        dropped=status.dropped,
        acked=status.acked,
        nacked=status.nacked,
        ack_failures=status.ack_failures,
        backoffs=status.backoffs,
    )


def add(left: Status, right: Status) -> Status:
    """Give the measurements of two agents, or groups of them, as of one."""
    return Status(
        buffered_rows=left.buffered_rows + right.buffered_rows,
        buffered_bytes=left.buffered_bytes + right.buffered_bytes,
        unacked_rows=left.unacked_rows + right.unacked_rows,
        oldest_unacked_seconds=max(left.oldest_unacked_seconds, right.oldest_unacked_seconds),
        received=left.received + right.received,
        redelivered=left.redelivered + right.redelivered,
        dropped=left.dropped + right.dropped,
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
