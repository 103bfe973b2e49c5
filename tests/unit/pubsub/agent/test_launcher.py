"""Starting agents: one and only one, with a private place of its own, that ends with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from penstock.errors import AgentError
from penstock.pubsub.agent import launcher
from penstock.pubsub.agent.config import AgentConfig
from penstock.pubsub.agent.launcher import agent_directory, ensure_agent, is_alive
from penstock.pubsub.source.coordinator import Coordinator
from tests.support.waiting import wait_for

SUBSCRIPTION = "projects/tests/subscriptions/orders"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Short, for the socket's path, and removed below.
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path) / f"penstock-{os.getuid()}"


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that stands for the executor's daemon."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child.pid
    child.kill()
    child.communicate()


@pytest.fixture
def config(coordinator: Coordinator, parent: int, place: Path) -> AgentConfig:
    # Nobody answers on port 1: the agent waits for its service, and that is enough here.
    return AgentConfig(
        run="run",
        subscription=SUBSCRIPTION,
        coordinator=f"127.0.0.1:{coordinator.port}",
        parent=parent,
        options={"subscriptionId": SUBSCRIPTION, "endpoint": "127.0.0.1:1", "jitter": "0s"},
        token=coordinator.token,
    )


def agents_in(place: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(place) in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_many_first_tasks_start_one_agent_that_ends_with_its_parent(
    config: AgentConfig, coordinator: Coordinator, place: Path
) -> None:
    with ThreadPoolExecutor(6) as pool:
        locations = set(pool.map(ensure_agent, [config] * 6))
    assert len(locations) == 1
    assert len(agents_in(place)) == 1
    wait_for(lambda: coordinator.overview().agents)
    directory = agent_directory(config.run, config.parent)
    assert directory.stat().st_mode & 0o077 == 0
    text = " ".join(agents_in(place)[0].cmdline()) + str(agents_in(place)[0].environ())
    assert config.token not in text
    assert config.token not in repr(config)
    psutil.Process(config.parent).kill()
    wait_for(lambda: not agents_in(place), seconds=20)
    assert not directory.exists()


def test_an_agent_that_was_killed_is_replaced_and_its_traces_go(
    config: AgentConfig, coordinator: Coordinator, place: Path
) -> None:
    location = ensure_agent(config)
    (first,) = agents_in(place)
    first.kill()
    wait_for(lambda: not is_alive(location))
    assert ensure_agent(config) == location
    (second,) = agents_in(place)
    assert second.pid != first.pid
    second.kill()
    wait_for(lambda: not is_alive(location))
    # Another run's agent finds what is left of it.
    from dataclasses import replace

    ensure_agent(replace(config, run="other"))
    assert not agent_directory(config.run, config.parent).exists()
    coordinator.stop()
    wait_for(lambda: not agents_in(place), seconds=20)
    assert not list(place.glob("*"))


def test_an_agent_that_ends_leaves_the_directory_to_its_successor(
    config: AgentConfig, coordinator: Coordinator, place: Path
) -> None:
    ensure_agent(config)
    (first,) = agents_in(place)
    first.terminate()
    directory = agent_directory(config.run, config.parent)
    wait_for(lambda: not (directory / "agent.sock").exists())
    location = ensure_agent(config)
    wait_for(lambda: not first.is_running())
    assert is_alive(location)
    coordinator.stop()
    wait_for(lambda: not agents_in(place), seconds=20)


def test_an_agent_that_cannot_start_tells_why(config: AgentConfig, place: Path) -> None:
    from dataclasses import replace

    broken = replace(config, options={**config.options, "leaseDuration": "1s"})
    with pytest.raises(AgentError, match="AGENT_START") as caught:
        ensure_agent(broken)
    assert "leaseDuration" in str(caught.value)
    assert not list(place.glob("*"))


def test_an_agent_that_hangs_is_ended(
    config: AgentConfig, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_START_SECONDS", 0.2)
    with pytest.raises(AgentError, match="did not start"):
        ensure_agent(config)
    wait_for(lambda: not agents_in(place))


def test_a_directory_that_others_may_enter_is_refused(config: AgentConfig, place: Path) -> None:
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    with pytest.raises(AgentError, match="SOCKET_DIRECTORY"):
        ensure_agent(config)


def test_a_temporary_directory_with_a_long_path_gives_way_to_tmp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 100)
    assert str(agent_directory("run", 1)).startswith("/tmp/penstock-")  # noqa: S108 - a name
