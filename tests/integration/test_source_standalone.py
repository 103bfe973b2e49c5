"""The Pub/Sub source on a standalone cluster: executors come and go, and tasks run twice."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cluster_steps import (
    BATCH,
    begin,
    end,
    numbers,
    output,
    wait_complete,
)
from tests.support.pubsub import Service
from tests.support.source import agents, is_running
from tests.support.source_cluster import Driver, driver
from tests.support.spark import wait_until
from tests.support.standalone import Standalone, address_of, standalone

# Ten JVMs start here; on a busy machine that takes its time.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

COUNT = 1200
# What is published at once: so little that each agent gets some.
PART = 40
# Of each executor, as `begin` has it.
STREAMS = 2


@pytest.fixture(scope="module")
def nodes() -> Iterator[Standalone]:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.2", 0))
        except OSError:
            pytest.skip("this system has only one loopback address")
    with standalone() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(nodes: Standalone) -> Iterator[Driver]:
    # One application for all tests: to start it takes longer than they do.
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.25",
        # Long enough that on a busy machine not every task gets a copy.
        "spark.speculation.minTaskRuntime": "5s",
    }
    with driver(**nodes.settings(), **settings) as running:
        yield running


class Producer:
    """Publishes numbered messages all the while, a few at a time, never far ahead of the query."""

    def __init__(self, pubsub: Service, topic: str, subscription: str) -> None:
        self._pubsub = pubsub
        self._topic = topic
        self._subscription = subscription
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")
        # How many were published: the numbers below it.
        self.sent = 0

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            if self._pubsub.emulator.counters(self._subscription).unacked < 2 * BATCH:
                self._pubsub.publish(self._topic, PART, self.sent)
                self.sent += PART

    def send_more(self, count: int, state: Callable[[], Any]) -> None:
        """Wait until so many more were published."""
        goal = self.sent + count
        wait_until(lambda: self.sent >= goal, 60, state)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Publish meanwhile."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()


def homes(folder: Path) -> set[int]:
    """Find the executors' daemons whose rows are in the sink."""
    return {home for rows in output(folder).values() for _, home in rows}


def addresses_of_agents(pubsub: Service) -> list[str]:
    return sorted(map(address_of, agents(pubsub)))


def task_of(note: dict[str, Any]) -> tuple[int, int]:
    return note["batch"], note["index"]


def wait_agents(nodes: Standalone, pubsub: Service, subscription: str) -> None:
    """Wait until each worker's executor has an agent, and nobody else has."""
    living = sorted(worker.address for worker in nodes.workers)

    def is_so() -> bool:
        # The streams first: to look at all processes takes long.
        streams = pubsub.emulator.counters(subscription).streams
        return streams == STREAMS * len(living) and addresses_of_agents(pubsub) == living

    def state() -> Any:
        counters = pubsub.emulator.counters(subscription)
        return {"living": living, "agents": addresses_of_agents(pubsub), "counters": counters}

    wait_until(is_so, 120, state)


def publish_parts(pubsub: Service, topic: str, start: int, stop: int) -> None:
    for first in range(start, stop, PART):
        pubsub.publish(topic, PART, first)


def notes(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Read what attempts have noted about themselves, the oldest first."""
    paths = sorted(folder.glob(f"{kind}-*.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in paths]


def test_executors_that_come_and_go_lose_nothing(
    nodes: Standalone, cluster: Driver, pubsub: Service, tmp_path: Path
) -> None:
    """New executors get rows by themselves, agents end with theirs, and every message arrives."""
    topic, subscription = pubsub.pair()
    producer = Producer(pubsub, topic, subscription)

    def state() -> Any:
        return {
            "workers": {worker.address: worker.daemons() for worker in nodes.workers},
            "homes": homes(tmp_path),
            "sent": producer.sent,
            "counters": pubsub.emulator.counters(subscription),
            **cluster.ask("progress", tmp_path),
        }

    nodes.resize(2)
    begin(cluster, pubsub, subscription, tmp_path)
    try:
        with producer.running():
            wait_agents(nodes, pubsub, subscription)
            nodes.resize(4)
            wait_agents(nodes, pubsub, subscription)
            daemons = [worker.daemons() for worker in nodes.workers]
            wait_until(lambda: all(map(homes(tmp_path).intersection, daemons)), 60, state)
            before = agents(pubsub)
            in_flight = 0
            # One that was there from the start, and one that came later.
            for leaving in (nodes.workers[0], nodes.workers[-1]):
                in_flight += pubsub.emulator.counters(subscription).outstanding
                nodes.end(leaving)
            wait_agents(nodes, pubsub, subscription)
            remaining = agents(pubsub)
            producer.send_more(2 * BATCH, state)
        wait_complete(cluster, pubsub, subscription, tmp_path, producer.sent)
        counters = pubsub.emulator.counters(subscription)
    finally:
        end(cluster, pubsub, tmp_path)
    received = numbers(tmp_path)
    assert set(received) == set(range(producer.sent))
    assert counters.unacked == 0
    # Executors that stay keep their agents; when the query is stopped, all are gone.
    assert len(before) == 4
    assert set(remaining) < set(before)
    assert not any(map(is_running, before))
    repeated = len(received) - producer.sent
    assert repeated <= counters.redelivered
    assert repeated <= in_flight + 2 * BATCH


def run_a_copy(
    nodes: Standalone, cluster: Driver, pubsub: Service, topic: str, subscription: str, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a task slow, and wait until its copy has won; gives the notes of loser and winner."""
    nodes.resize(2)
    begin(cluster, pubsub, subscription, folder)
    wait_agents(nodes, pubsub, subscription)
    publish_parts(pubsub, topic, 0, COUNT // 2)
    wait_until(lambda: len(homes(folder)) == 2, 60, lambda: output(folder))
    (folder / "slow").touch()
    publish_parts(pubsub, topic, COUNT // 2, COUNT)
    loser = wait_until(lambda: notes(folder, "slowed"), 60)[0]
    (folder / "pause").touch()
    process = psutil.Process(loser["pid"])
    # It waits for Spark to kill it, which is when the copy has won.
    wait_until(lambda: not is_running(process), 60, lambda: notes(folder, "again"))
    winner = next(one for one in notes(folder, "again") if task_of(one) == task_of(loser))
    return loser, winner


def end_a_copy(cluster: Driver, pubsub: Service, folder: Path) -> None:
    (folder / "go").touch()
    (folder / "pause").unlink(missing_ok=True)
    end(cluster, pubsub, folder)


def test_a_speculative_copy_of_a_task_loses_nothing(
    nodes: Standalone, cluster: Driver, pubsub: Service, tmp_path: Path
) -> None:
    """Two attempts on two executors have read messages, and one counts: the others come again."""
    topic, subscription = pubsub.pair()
    try:
        loser, winner = run_a_copy(nodes, cluster, pubsub, topic, subscription, tmp_path)
        (tmp_path / "pause").unlink()
        wait_complete(cluster, pubsub, subscription, tmp_path, COUNT)
        counters = pubsub.emulator.counters(subscription)
    finally:
        end_a_copy(cluster, pubsub, tmp_path)
    copies = notes(tmp_path, "again")
    assert winner["home"] != loser["home"]
    found = {batch: {number for number, _ in rows} for batch, rows in output(tmp_path).items()}
    later = {number for batch in found if batch > loser["batch"] for number in found[batch]}
    # The batch has the messages of the winner, which are others; the loser's come in later ones.
    assert set(winner["numbers"]) <= found[loser["batch"]]
    assert not set(loser["numbers"]) & found[loser["batch"]]
    assert set(loser["numbers"]) <= later
    assert counters.unacked == 0
    assert len(loser["numbers"]) <= counters.redelivered
    assert len(numbers(tmp_path)) - COUNT <= counters.redelivered
    assert len(numbers(tmp_path)) - COUNT <= (len(copies) + 1) * BATCH


def test_a_winner_whose_agent_dies_before_the_commit_loses_nothing(
    nodes: Standalone, cluster: Driver, pubsub: Service, tmp_path: Path
) -> None:
    """The trap: the loser's delivery is then the only one left, and it is not in the sink."""
    topic, subscription = pubsub.pair()
    try:
        _, winner = run_a_copy(nodes, cluster, pubsub, topic, subscription, tmp_path)
        home = next(one.address for one in nodes.workers if winner["home"] in one.daemons())
        victim = next(agent for agent in agents(pubsub) if address_of(agent) == home)
        victim.kill()
        # The driver learns it when the service does.
        wait_until(lambda: pubsub.emulator.counters(subscription).streams == STREAMS, 30)
        (tmp_path / "pause").unlink()
        wait_complete(cluster, pubsub, subscription, tmp_path, COUNT)
    finally:
        end_a_copy(cluster, pubsub, tmp_path)
