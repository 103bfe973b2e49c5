"""SIGKILL of the driver around Spark's commit, in both modes: what comes again, what does not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.cluster_steps import begin, numbers, output, wait_complete
from tests.support.pubsub import Service
from tests.support.source import agents, is_running
from tests.support.source_cluster import Driver, driver
from tests.support.spark import wait_until

# Two sessions start in each test.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COUNT = 1000
LOCAL = {"spark.master": "local[2]"}


class Modes:
    """A query in each mode, with a subscription of its own."""

    def __init__(self, pubsub: Service, folder: Path) -> None:
        self._pubsub = pubsub
        self.plain, self.spooled = folder / "plain", folder / "spooled"
        self._pairs = {self.plain: pubsub.pair(), self.spooled: pubsub.pair()}
        self._more = {self.plain: {}, self.spooled: {"spoolLocation": str(folder / "spool")}}
        for one in self._pairs:
            one.mkdir()

    def begin(self, cluster: Driver, trigger: str = "0 seconds") -> None:
        for folder, (_, subscription) in self._pairs.items():
            begin(cluster, self._pubsub, subscription, folder, trigger, **self._more[folder])

    def publish(self) -> None:
        for topic, _ in self._pairs.values():
            self._pubsub.publish(topic, COUNT)

    def kill(self, cluster: Driver) -> None:
        """Kill the driver and its JVM; agents end by themselves."""
        running = agents(self._pubsub)
        for process in [*cluster.descendants("org.apache.spark.deploy"), cluster.process]:
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, running)), 30, lambda: running)

    def finish(self, cluster: Driver) -> None:
        self.begin(cluster)
        for folder, (_, subscription) in self._pairs.items():
            wait_complete(cluster, self._pubsub, subscription, folder, COUNT)
        running = agents(self._pubsub)
        for folder in self._pairs:
            cluster.ask("stop", folder)
        wait_until(lambda: not any(map(is_running, running)), 20, lambda: running)


def test_a_batch_whose_driver_died_before_the_commit_is_run_again(
    pubsub: Service, tmp_path: Path
) -> None:
    """All tasks have ended, the sink has written nothing: nothing is lost, and nothing twice."""
    modes = Modes(pubsub, tmp_path)
    for folder in (modes.plain, modes.spooled):
        (folder / "pause").touch()
    with driver(**LOCAL) as first:
        modes.begin(first)
        modes.publish()
        for folder in (modes.plain, modes.spooled):
            wait_until((folder / "paused").exists, 90, first.log_tail)
        modes.kill(first)
    for folder in (modes.plain, modes.spooled):
        (folder / "pause").unlink()
    with driver(**LOCAL) as second:
        modes.finish(second)
    assert sorted(numbers(modes.spooled)) == list(range(COUNT))
    assert set(numbers(modes.plain)) == set(range(COUNT))


def test_a_driver_that_died_after_the_commit_costs_duplicates_without_a_spool_only(
    pubsub: Service, tmp_path: Path
) -> None:
    """Spark calls the source only at the next trigger: by then this driver is dead."""
    modes = Modes(pubsub, tmp_path)
    modes.publish()
    folders = (modes.plain, modes.spooled)
    with driver(**LOCAL) as first:
        modes.begin(first, "15 seconds")
        wait_until(lambda: all(map(output, folders)), 90, first.log_tail)
        done = {folder: max(output(folder)) for folder in folders}
        for folder in folders:
            commit = folder / "checkpoint" / "commits" / str(done[folder])
            wait_until(commit.exists, 10, first.log_tail)
        modes.kill(first)
        last = {number for number, _ in output(modes.plain)[done[modes.plain]]}
    with driver(**LOCAL) as second:
        modes.finish(second)
    plain = numbers(modes.plain)
    assert set(plain) == set(range(COUNT))
    # At most the batch that Spark had committed and the source had not heard of.
    assert {number for number in plain if plain.count(number) > 1} <= last
    assert sorted(numbers(modes.spooled)) == list(range(COUNT))
