"""A stateful query over the exactly-once source, on executors that die: its sums are exact."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.pubsub import Service
from tests.support.source import agents, is_running
from tests.support.source_cluster import Driver, driver
from tests.support.spark import wait_until
from tests.support.window_cluster import WINDOW_MS

# A session with two executors starts here, and executors are replaced three times.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PER_ROUND = 800
ROUNDS = 3
BATCH = 200
# Three hours later: this message moves the watermark over all windows before it.
LAST = 10_800_000


def begin(cluster: Driver, pubsub: Service, subscription: str, folder: Path) -> None:
    options = {
        "endpoint": pubsub.emulator.address,
        "subscriptionId": subscription,
        "spoolLocation": str(folder / "spool"),
        # `Service.publish` puts the number there; as a time it counts milliseconds.
        "timestampAttribute": "n",
        "jitter": "0s",
        "streamsPerExecutor": "2",
        "leaseDuration": "10s",
        "maxRowsPerTrigger": str(BATCH),
    }
    cluster.ask("start", folder, options=options)


def output(folder: Path) -> dict[int, list[list[int]]]:
    """Read what the sink holds: batch -> (start of the window, count, sum)."""
    return {
        int(path.stem): json.loads(path.read_text()) for path in (folder / "out").glob("*.json")
    }


def windows(folder: Path) -> list[list[int]]:
    return sorted(row for rows in output(folder).values() for row in rows)


def expected(count: int) -> list[list[int]]:
    numbers = defaultdict(list)
    for number in range(count):
        numbers[number // WINDOW_MS * WINDOW_MS].append(number)
    return [[start, len(some), sum(some)] for start, some in sorted(numbers.items())]


def test_windows_are_exact_though_executors_die(pubsub: Service, tmp_path: Path) -> None:
    """SIGKILL of an executor in mid-batch, three times: each window has its count and its sum."""
    topic, subscription = pubsub.pair()
    with driver(program="tests.support.window_cluster") as cluster:

        def state() -> Any:
            counters = pubsub.emulator.counters(subscription)
            return cluster.ask("progress", tmp_path), counters, cluster.log_tail()

        begin(cluster, pubsub, subscription, tmp_path)
        for number in range(ROUNDS):
            done = len(output(tmp_path))
            pubsub.publish(topic, PER_ROUND, number * PER_ROUND)
            # Some batches of this round are through, and more are to come.
            wait_until(lambda done=done: len(output(tmp_path)) >= done + 2, 120, state)
            cluster.descendants("CoarseGrainedExecutorBackend")[number % 2].kill()
        wait_until(lambda: pubsub.emulator.counters(subscription).unacked == 0, 150, state)
        pubsub.publish(topic, 1, LAST)
        want = expected(ROUNDS * PER_ROUND)
        wait_until(lambda: len(windows(tmp_path)) >= len(want), 90, state)
        running = agents(pubsub)
        cluster.ask("stop", tmp_path)
        wait_until(lambda: not any(map(is_running, running)), 20, lambda: running)
    assert windows(tmp_path) == want
