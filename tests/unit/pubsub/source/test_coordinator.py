"""The coordinator alone; with agents over real links it is tested in agent/test_link.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from penstock.pubsub.agent.protocol import Hello, Status
from penstock.pubsub.source.agents import Agent, add, count_cores
from penstock.pubsub.source.coordinator import Coordinator


def agent(name: str, host: str, cores: int, *, is_executor_cores: bool = False) -> Agent:
    return Agent(name, Hello(name, host, 1, cores, is_executor_cores))


def test_agents_on_one_machine_share_itscount_cores() -> None:
    assert count_cores([agent("1", "a", 8), agent("2", "a", 8), agent("3", "b", 4)]) == 12


def test_cores_that_spark_tells_are_added_up() -> None:
    told = [agent(str(n), "a", 2, is_executor_cores=True) for n in range(3)]
    assert count_cores(told) == 6


def test_all_streams_have_to_be_quiet() -> None:
    quiet = Status(streams=1, quiet_seconds=9.0)
    busy = Status(streams=1, quiet_seconds=1.0)
    assert add(add(Status(), quiet), busy).quiet_seconds == 1.0


def test_a_coordinator_without_agents_has_nothing() -> None:
    coordinator = Coordinator()
    coordinator.start()
    try:
        overview = coordinator.overview(1)
        assert (overview.agents, overview.cores, overview.rows) == (0, 0, 0)
        coordinator.commit(1, 5)
        coordinator.raise_fatal()
        assert not coordinator.wait(lambda ledger: ledger.open_count > 0, 0.05)
    finally:
        coordinator.stop()


def test_stopping_twice_is_stopping() -> None:
    coordinator = Coordinator()
    coordinator.start()
    coordinator.stop()
    coordinator.stop()


def test_two_may_stop_it_at_once() -> None:
    """A stop of the query comes as a signal, and as the end of Spark's connection."""
    coordinator = Coordinator()
    coordinator.start()
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(coordinator.stop) for _ in range(2)]
        for end in ends:
            end.result(timeout=20)


def test_every_run_has_a_secret_of_its_own() -> None:
    tokens = {Coordinator().token for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) > 30 for token in tokens)
