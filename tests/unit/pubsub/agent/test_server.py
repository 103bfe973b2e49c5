"""Tasks and their agent, over Flight on a real socket: what a broken read leaves behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from penstock.errors import ConnectError
from penstock.pubsub.agent.protocol import GaveBack
from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.agent.server import AgentServer, Fetch, delivery_number
from tests.support.waiting import wait_for
from tests.unit.pubsub.agent.test_reservoir import received


class FakeLink:
    """A coordinator that answers as it is told."""

    def __init__(self) -> None:
        self.answer: bool | Exception = True
        self.log: list[Any] = []

    def ask_delivery(self, number: int, tick: int, index: int, attempt: int, rows: int) -> bool:
        self.log.append(("deliver", number, rows))
        return self._answer()

    def ask_complete(self, number: int) -> bool:
        self.log.append(("complete", number))
        return self._answer()

    def tell(self, message: Any) -> None:
        self.log.append(message)

    def _answer(self) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Agent:
    """A server with its parts."""

    def __init__(self, directory: str) -> None:
        self.reservoir = Reservoir()
        self.link = FakeLink()
        self.failure: str | None = None
        self.location = f"grpc+unix://{directory}/agent.sock"
        self.server = AgentServer(
            self.location,
            self.reservoir,
            self.link,  # type: ignore[arg-type]
            lambda: self.link.log.append("status"),
            lambda: self.failure,
        )

    def fetch(self, client: Any, rows: int = 2**62, tasks: int = 1) -> Any:
        return client.do_get(Fetch(1, 0, 7, rows, 2**62, tasks).ticket())


@pytest.fixture
def agent() -> Iterator[Agent]:
    # A short path, as a socket needs.
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as directory:
        made = Agent(directory)
        yield made
        made.server.shutdown()


@pytest.fixture
def client(agent: Agent) -> Iterator[Any]:
    with flight.connect(agent.location) as made:
        yield made


def test_a_task_reads_its_share_and_confirms_it(agent: Agent, client: Any) -> None:
    agent.reservoir.put(received(list(range(10))), 0.0, 60.0)
    reader = agent.fetch(client, tasks=2)
    number = delivery_number(reader.schema)
    assert reader.read_all()["message_id"].to_pylist() == [str(n) for n in range(5)]
    list(client.do_action(flight.Action("complete", str(number).encode())))
    # The status before the answer: then the driver knows what is left when the task ends.
    assert agent.link.log == [("deliver", number, 5), "status", ("complete", number)]
    assert agent.reservoir.state().buffered_rows == 5


@pytest.mark.parametrize("answer", [False, ConnectError("X", "the coordinator", "is gone", "y")])
def test_nothing_leaves_that_the_coordinator_has_not_noted(
    agent: Agent, client: Any, answer: bool | Exception
) -> None:
    agent.reservoir.put(received([1, 2]), 0.0, 60.0)
    agent.link.answer = answer
    with pytest.raises(flight.FlightError):
        agent.fetch(client).read_all()
    state = agent.reservoir.state()
    assert (state.buffered_rows, state.held_rows) == (2, 0)


def test_a_task_whose_delivery_is_forgotten_must_not_count(agent: Agent, client: Any) -> None:
    """The link broke and came back: the coordinator would not see two attempts in the ledger."""
    agent.reservoir.put(received([1, 2]), 0.0, 60.0)
    reader = agent.fetch(client)
    reader.read_all()
    agent.link.answer = False
    body = str(delivery_number(reader.schema)).encode()
    with pytest.raises(flight.FlightError, match="not known any more"):
        list(client.do_action(flight.Action("complete", body)))


def test_a_read_that_is_broken_off_puts_its_messages_back(agent: Agent, client: Any) -> None:
    for start in range(0, 400_000, 10_000):
        agent.reservoir.put(received(list(range(start, start + 10_000))), 0.0, 60.0)
    reader = agent.fetch(client)
    number = delivery_number(reader.schema)
    reader.read_chunk()
    reader.cancel()
    del reader
    wait_for(lambda: agent.reservoir.state().buffered_rows, lambda rows: rows == 400_000)
    assert agent.link.log[-1] == GaveBack(number)
    first = agent.fetch(client, rows=3).read_all()
    assert first["message_id"].to_pylist() == ["0", "1", "2"]


def test_the_agents_failure_reaches_the_task(agent: Agent, client: Any) -> None:
    agent.failure = "[PENSTOCK_NOT_FOUND] gone"
    with pytest.raises(flight.FlightServerError, match="PENSTOCK_NOT_FOUND"):
        agent.fetch(client).read_all()
    with pytest.raises(flight.FlightServerError, match="PENSTOCK_NOT_FOUND"):
        list(client.do_action("ping"))


@pytest.mark.parametrize("ticket", [b"", b"[]", b'{"tick": 1}', b'{"tick": "x"}'])
def test_a_ticket_that_is_none_is_refused(agent: Agent, client: Any, ticket: bytes) -> None:
    with pytest.raises(flight.FlightError, match="not a fetch"):
        client.do_get(flight.Ticket(ticket)).read_all()


def test_the_socket_is_in_the_agents_directory(agent: Agent) -> None:
    path = Path(agent.location.removeprefix("grpc+unix://"))
    assert path.is_socket()
    assert path.stat().st_uid == os.getuid()
