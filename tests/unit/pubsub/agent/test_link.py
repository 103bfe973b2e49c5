"""Agents' links to the coordinator, over real connections on this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from penstock.errors import ConnectError
from penstock.pubsub.agent.link import Link, LinkEvents
from penstock.pubsub.agent.protocol import (
    Fatal,
    GaveBack,
    GaveUp,
    Hello,
    Noted,
    Order,
    Release,
    Settled,
    Status,
    Suspect,
    Verdict,
)
from penstock.pubsub.source.coordinator import Coordinator
from penstock.pubsub.source.spool_keeper import SpoolKeeper
from penstock.pubsub.spool.format import SpoolKey
from penstock.pubsub.spool.store import SpoolStore
from tests.support.waiting import wait_for


class Relay:
    """Stands between agent and coordinator, and can break what goes through it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.is_open = True
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self.is_open:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            self._pairs.append((near, far))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        for pair in self._pairs:
            for one in pair:
                _shut(one)
        self._pairs.clear()

    def close(self) -> None:
        _shut(self._listener)
        self._thread.join(5)
        self.cut()


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    finally:
        one.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        _shut(source)
        _shut(target)


@pytest.fixture
def relay(coordinator: Coordinator) -> Iterator[Relay]:
    made = Relay(coordinator.port)
    yield made
    made.close()


class AgentEnd:
    """A link as an agent has it, with what it was told."""

    def __init__(
        self, port: int, token: str, silence_seconds: float = 20.0, name: str = "one"
    ) -> None:
        self.orders: list[Order] = []
        self.lost = 0
        hello = Hello(name, "host", 7, 2, False)
        # And how many suspects were known by then.
        self.opened = 0
        self.known_when_opened = 0
        self.released: list[Release] = []
        self.suspects: list[Suspect] = []
        events = LinkEvents(
            self.orders.append,
            self.released.append,
            self.suspects.append,
            self._on_open,
            self._on_lost,
        )
        self.link = Link(f"127.0.0.1:{port}", token, hello, events, silence_seconds)
        self.link.start()

    def _on_open(self) -> None:
        self.known_when_opened = len(self.suspects)
        self.opened += 1

    def _on_lost(self) -> None:
        self.lost += 1

    def close(self) -> None:
        self.link.stop()


@pytest.fixture
def agent(coordinator: Coordinator, relay: Relay) -> Iterator[AgentEnd]:
    made = AgentEnd(relay.port, coordinator.token)
    yield made
    made.close()


def test_a_delivery_is_acknowledged_after_its_commit(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    assert agent.link.ask_delivery(1, 1, 0, 10, 5)
    assert agent.link.ask_delivery(2, 1, 1, 11, 5)
    assert agent.link.ask_complete(1)
    assert coordinator.overview(1).rows == 10
    coordinator.commit(1, 5)
    wait_for(lambda: agent.orders)
    assert agent.orders == [Order([1], [2])]
    assert coordinator.overview().settling_deliveries == 2
    agent.link.tell(Settled([1, 2]))
    assert coordinator.wait(lambda ledger: not ledger.settling_count, 5)


def test_a_delivery_of_a_batch_that_is_over_is_refused(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    coordinator.commit(3, 5)
    assert not agent.link.ask_delivery(1, 3, 0, 10, 5)
    assert agent.link.ask_delivery(1, 4, 0, 10, 5)


def test_two_complete_attempts_are_both_handed_back(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    for number, attempt in ((1, 10), (2, 11)):
        assert agent.link.ask_delivery(number, 1, 0, attempt, 5)
        assert agent.link.ask_complete(number)
    coordinator.commit(1, 5)
    wait_for(lambda: agent.orders)
    assert agent.orders == [Order([], [1, 2])]


def test_a_delivery_that_is_read_twice_is_acknowledged_once(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    """A sink that computes its batch twice gets the same messages, and they are done with."""
    for attempt in (1, 2):
        assert agent.link.ask_delivery(1, 1, 0, attempt, 10)
        assert agent.link.ask_complete(1)
    assert coordinator.overview(1).rows == 10
    coordinator.commit(1, 5)
    wait_for(lambda: agent.orders)
    assert agent.orders == [Order([1], [])]


def test_an_agent_to_which_no_task_comes_gives_its_buffer_away(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    wait_for(lambda: agent.opened)
    agent.link.tell(Status(buffered_rows=5))
    wait_for(lambda: coordinator.overview().status.buffered_rows)
    for tick in range(1, 4):
        coordinator.commit(tick, 5)
    assert agent.link.ask_delivery(1, 4, 0, 1, 1)
    assert agent.released == []
    for tick in range(4, 8):
        coordinator.commit(tick, 5)
    wait_for(lambda: agent.released)
    assert len(agent.released) == 1


def test_a_delivery_that_was_given_back_is_not_settled(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    assert agent.link.ask_delivery(1, 1, 0, 10, 5)
    agent.link.tell(GaveBack(1))
    assert coordinator.wait(lambda ledger: not ledger.open_count, 5)
    assert coordinator.overview(1).rows == 0


def test_a_wrong_token_is_refused_and_ends_the_agent(coordinator: Coordinator) -> None:
    agent = AgentEnd(coordinator.port, "wrong")
    try:
        assert agent.link.ended.wait(10)
        assert coordinator.overview().agents == 0
    finally:
        agent.close()


def test_a_stranger_without_a_token_gets_nothing(coordinator: Coordinator) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{coordinator.port}") as channel:
        call = channel.stream_stream("/penstock.Coordinator/Link")(iter([b"{}"]))
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_garbage_from_an_agent_ends_its_link_alone(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    assert agent.link.ask_delivery(1, 1, 0, 10, 5)
    metadata = (("penstock-token", coordinator.token),)
    with grpc.insecure_channel(f"127.0.0.1:{coordinator.port}") as channel:
        call = channel.stream_stream("/penstock.Coordinator/Link")(
            iter([b"not json"]), metadata=metadata
        )
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert agent.link.ask_complete(1)


def test_a_broken_link_is_opened_again_and_its_deliveries_are_forgotten(
    coordinator: Coordinator, agent: AgentEnd, relay: Relay
) -> None:
    agent.link.tell(Status(received=5))
    assert agent.link.ask_delivery(1, 1, 0, 10, 5)
    relay.cut()
    wait_for(lambda: agent.lost)
    wait_for(lambda: coordinator.overview().open_deliveries, lambda count: count == 0)
    assert agent.link.ask_delivery(2, 1, 0, 11, 5)
    assert agent.link.ask_complete(2)
    coordinator.commit(1, 5)
    wait_for(lambda: agent.orders)
    assert agent.orders == [Order([2], [])]


def test_counters_of_an_agent_that_comes_back_are_not_added_twice(
    coordinator: Coordinator, agent: AgentEnd, relay: Relay
) -> None:
    agent.link.tell(Status(received=5, buffered_rows=3))
    assert agent.link.ask_delivery(1, 1, 0, 10, 5)
    relay.cut()
    wait_for(lambda: agent.lost)
    assert agent.link.ask_delivery(2, 1, 0, 10, 5)
    agent.link.tell(Status(received=6, buffered_rows=3))
    assert agent.link.ask_complete(2)
    overview = coordinator.overview()
    assert (overview.status.received, overview.status.buffered_rows) == (6, 3)
    relay.is_open = False
    relay.cut()
    wait_for(lambda: coordinator.overview().agents, lambda count: count == 0)
    overview = coordinator.overview()
    assert (overview.status.received, overview.status.buffered_rows) == (6, 0)


def test_a_question_asked_while_the_link_is_down_waits_for_the_next_one(
    agent: AgentEnd, relay: Relay
) -> None:
    assert agent.link.ask_delivery(1, 1, 0, 10, 5)
    relay.is_open = False
    relay.cut()
    wait_for(lambda: agent.lost)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(agent.link.ask_delivery, n, 1, n, n, 1) for n in range(2, 10)]
        relay.is_open = True
        assert all(one.result(timeout=10) for one in asked)


def test_a_question_on_a_link_that_breaks_fails_soon(agent: AgentEnd, relay: Relay) -> None:
    assert agent.link.ask_delivery(1, 1, 0, 10, 5)
    relay.is_open = False
    with agent.link._lock:
        # As if the question had been sent and its answer lost.
        from concurrent.futures import Future

        pending: Future[bool] = Future()
        agent.link._answers[999] = pending, b""
    relay.cut()
    with pytest.raises(ConnectionError):
        pending.result(timeout=10)


def test_an_agent_whose_coordinator_is_gone_ends(coordinator: Coordinator) -> None:
    relay = Relay(coordinator.port)
    agent = AgentEnd(relay.port, coordinator.token, silence_seconds=0.5)
    try:
        assert agent.link.ask_delivery(1, 1, 0, 10, 5)
        relay.close()
        assert agent.link.ended.wait(10)
        with pytest.raises(ConnectError, match="coordinatorHost"):
            agent.link.ask_delivery(2, 1, 0, 10, 5)
    finally:
        agent.close()
        relay.close()


def test_a_stop_of_the_query_ends_the_agent() -> None:
    coordinator = Coordinator()
    coordinator.start()
    agent = AgentEnd(coordinator.port, coordinator.token)
    try:
        assert agent.link.ask_delivery(1, 1, 0, 10, 5)
        coordinator.stop()
        assert agent.link.ended.wait(10)
    finally:
        agent.close()


def test_a_fatal_error_reaches_the_query_with_the_agents_log(
    coordinator: Coordinator, agent: AgentEnd
) -> None:
    facts = ("NOT_FOUND", "Subscription 's'", "gone", "Make")
    wait_for(lambda: agent.opened)
    agent.link.tell(Fatal(*facts, "the last line"))
    assert coordinator.wait(lambda ledger: False, 5)
    with pytest.raises(Exception, match="PENSTOCK_NOT_FOUND") as caught:
        coordinator.raise_fatal()
    assert "the last line" in str(caught.value)
    assert "process 7" in str(caught.value)


@pytest.fixture
def spooled(tmp_path: Path) -> Iterator[Coordinator]:
    keeper = SpoolKeeper(SpoolStore(str(tmp_path)), "projects/p/subscriptions/s", 60.0)
    made = Coordinator(spool=keeper, silence_seconds=30.0, quiet_seconds=0.3)
    made.start()
    yield made
    made.stop()


def test_suspects_are_known_before_anything_is_pulled(spooled: Coordinator) -> None:
    assert spooled._spool is not None
    spooled._spool.ledger.restore(SpoolKey(1, 0), 1, 0.0, 0.0)
    agent = AgentEnd(spooled.port, spooled.token)
    try:
        wait_for(lambda: agent.opened)
        assert agent.known_when_opened == 1
    finally:
        agent.close()


def test_what_a_quiet_agent_has_written_is_suspect_to_the_others(spooled: Coordinator) -> None:
    """It may stand still: before its leases end, the others know what it has not acknowledged."""
    quiet = AgentEnd(spooled.port, spooled.token)
    other = AgentEnd(spooled.port, spooled.token, name="two")
    try:
        wait_for(lambda: quiet.opened and other.opened)
        assert quiet.link.ask_claim(1, 0) is Verdict.WRITE
        assert quiet.link.ask_durable(1, 0, 5, 50) is Noted.NOTED
        assert quiet.link.ask_claim(1, 1) is Verdict.WRITE
        # It says nothing any more. The other one does.
        wait_for(lambda: (other.link.tell(Status()), other.suspects)[1])
        assert other.suspects == [Suspect([[1, 0]])]
        # What it was writing meanwhile is not taken.
        assert quiet.link.ask_durable(1, 1, 5, 50) is Noted.STALE
        quiet.link.tell(GaveUp(1, 1))
        assert quiet.link.ask_claim(1, 1) is Verdict.WRITE
        assert quiet.link.ask_durable(1, 1, 5, 50) is Noted.NOTED
    finally:
        quiet.close()
        other.close()
