"""The Pub/Sub source on two executor processes: what is lost when parts of it die. Nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.cluster_steps import (
    BATCH,
    COUNT,
    begin,
    end,
    hold_a_batch,
    numbers,
    output,
    wait_complete,
)
from tests.support.pubsub import Service
from tests.support.source import agents, is_running
from tests.support.source_cluster import Driver, driver
from tests.support.spark import wait_until

# Two sessions start here, each with two executors; on a busy machine that takes its time.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Driver]:
    # A task that has failed on an executor is tried on the other one.
    settings = {
        "spark.excludeOnFailure.enabled": "true",
        "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
        "spark.excludeOnFailure.timeout": "5s",
        "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "100",
        "spark.excludeOnFailure.application.maxFailedExecutorsPerNode": "100",
        "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": "100",
        "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode": "100",
        "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "3",
    }
    with driver(**settings) as running:
        yield running


def test_a_retry_on_the_other_executor_loses_nothing(
    cluster: Driver, pubsub: Service, tmp_path: Path
) -> None:
    """The trap: an attempt has read everything and fails, and another executor's attempt counts."""
    topic, subscription = pubsub.pair()
    begin(cluster, pubsub, subscription, tmp_path)
    try:
        pubsub.publish(topic, COUNT // 2)
        wait_until(
            lambda: len(output(tmp_path)) >= 2, 120, lambda: cluster.ask("progress", tmp_path)
        )
        (tmp_path / "fail").touch()
        pubsub.publish(topic, COUNT // 2, COUNT // 2)
        failed = wait_until(lambda: list(tmp_path.glob("failed-*")), 30)
        wait_complete(cluster, pubsub, subscription, tmp_path)
        again = [json.loads(path.read_text()) for path in tmp_path.glob("again-*.json")]
        counters = pubsub.emulator.counters(subscription)
    finally:
        end(cluster, pubsub, tmp_path)
    # Attempts of other tasks may be killed and made again; the one that failed is among them.
    assert any(it["home"] != int(failed[0].name.split("-")[1]) for it in again)
    # What both attempts had read comes again, and no more.
    assert 0 < counters.redelivered <= 2 * BATCH
    assert len(numbers(tmp_path)) - COUNT <= 2 * BATCH


@pytest.mark.parametrize("victim", ["worker", "agent", "executor"])
def test_a_process_killed_in_mid_batch_loses_nothing(
    cluster: Driver, pubsub: Service, tmp_path: Path, victim: str
) -> None:
    """SIGKILL of one process: every message arrives, and only what was in flight comes again."""
    topic, subscription = pubsub.pair()
    begin(cluster, pubsub, subscription, tmp_path)
    try:
        pubsub.publish(topic, COUNT)
        holding = hold_a_batch(tmp_path)
        for process in victims(cluster, pubsub, victim, holding[0]):
            process.kill()
        in_flight = pubsub.emulator.counters(subscription).outstanding
        (tmp_path / "hold").unlink()
        wait_complete(cluster, pubsub, subscription, tmp_path)
        counters = pubsub.emulator.counters(subscription)
    finally:
        end(cluster, pubsub, tmp_path)
    assert counters.redelivered <= in_flight + 2 * BATCH
    assert len(numbers(tmp_path)) - COUNT <= in_flight + 2 * BATCH


def victims(cluster: Driver, pubsub: Service, kind: str, holding: int) -> list[psutil.Process]:
    """Find what to kill: something that has to do with the process that holds the batch."""
    worker = psutil.Process(holding)
    if kind == "worker":
        return [worker]
    if kind == "agent":
        return agents(pubsub)[:1]
    executors = cluster.descendants("CoarseGrainedExecutorBackend")
    return [process for process in worker.parents() if process in executors]


def test_a_killed_driver_goes_on_from_its_checkpoint(pubsub: Service, tmp_path: Path) -> None:
    """SIGKILL of the driver in mid-batch: a new one gets what was not acknowledged."""
    topic, subscription = pubsub.pair()
    with driver() as first:
        begin(first, pubsub, subscription, tmp_path)
        pubsub.publish(topic, COUNT)
        hold_a_batch(tmp_path)
        running = agents(pubsub)
        below = first.process.children(recursive=True)
        in_flight = pubsub.emulator.counters(subscription).outstanding
        for process in [first.process, *first.descendants("org.apache.spark.deploy.SparkSubmit")]:
            os.kill(process.pid, signal.SIGKILL)
        # Executors and agents notice by themselves.
        wait_until(lambda: not any(map(is_running, [*running, *below])), 30, lambda: running)
    (tmp_path / "hold").unlink()
    with driver() as second:
        begin(second, pubsub, subscription, tmp_path)
        try:
            wait_complete(second, pubsub, subscription, tmp_path)
            counters = pubsub.emulator.counters(subscription)
        finally:
            end(second, pubsub, tmp_path)
    assert len(running) == 2
    # At worst an agent hands back to the other, before that one has noticed.
    assert counters.redelivered <= len(running) * in_flight + 2 * BATCH
    assert len(numbers(tmp_path)) - COUNT <= in_flight + 2 * BATCH
