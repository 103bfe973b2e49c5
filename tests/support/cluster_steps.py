"""Steps of the tests that run a driver in a process of its own: begin, look, hold, end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.pubsub import Service
from tests.support.source import agents, is_running
from tests.support.source_cluster import Driver
from tests.support.spark import wait_until

COUNT = 2000
BATCH = 200


def begin(
    cluster: Driver,
    pubsub: Service,
    subscription: str,
    folder: Path,
    trigger: str = "0 seconds",
    **more: str,
) -> None:
    """Start the query of a folder."""
    options = {
        "endpoint": pubsub.emulator.address,
        "subscriptionId": subscription,
        "jitter": "0s",
        "streamsPerExecutor": "2",
        "leaseDuration": "10s",
        "maxRowsPerTrigger": str(BATCH),
        **more,
    }
    cluster.ask("start", folder, options=options, trigger=trigger)


def output(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """Read what the sink holds: batch -> (number, executor's daemon)."""
    return {
        int(path.stem): [tuple(row) for row in json.loads(path.read_text())]
        for path in (folder / "out").glob("*.json")
    }


def numbers(folder: Path) -> list[int]:
    """Read what the sink holds: the numbers, with repetitions."""
    return [number for rows in output(folder).values() for number, _ in rows]


def wait_complete(
    cluster: Driver, pubsub: Service, subscription: str, folder: Path, count: int = COUNT
) -> None:
    """Wait until every message is in the sink, and all are acknowledged."""

    def state() -> Any:
        answer = cluster.ask("progress", folder)
        counters = pubsub.emulator.counters(subscription)
        return {
            "rows": len(set(numbers(folder))),
            "counters": counters,
            **answer,
            "log": cluster.log_tail(),
        }

    def is_complete() -> bool:
        if set(numbers(folder)) != set(range(count)):
            return False
        return pubsub.emulator.counters(subscription).unacked == 0

    wait_until(is_complete, 90, state)


def end(cluster: Driver, pubsub: Service, folder: Path) -> None:
    """Stop the query; its agents must end."""
    running = agents(pubsub)
    (folder / "hold").unlink(missing_ok=True)
    cluster.ask("stop", folder)
    wait_until(lambda: not any(map(is_running, running)), 20, lambda: running)


def hold_a_batch(folder: Path) -> list[int]:
    """Wait until a task has read rows and does not go on; gives the waiting processes."""
    wait_until(lambda: len(output(folder)) >= 2, 120, lambda: list(folder.iterdir()))
    (folder / "hold").touch()
    return wait_until(
        lambda: [int(path.name.split("-")[1]) for path in folder.glob("held-*")],
        30,
        lambda: list(folder.iterdir()),
    )
