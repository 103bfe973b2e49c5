"""A short chaos run: the harness works, and the exactly-once mode keeps its promise in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chaos.run import Settings, run_chaos
from chaos.verdict import EXACTLY_ONCE

# Two executors start here, and drivers and executors are replaced.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

# It begins with: an executor, the driver and an agent are killed, the service goes away, ids fail.
SEED = 4


def test_nothing_is_lost_or_repeated_in_a_short_chaos_run() -> None:
    """Kills, freezes and faults for half a minute; `make chaos` does it for as long as you like."""
    said: list[str] = []
    settings = Settings(mode=EXACTLY_ONCE, minutes=0.5, seed=SEED, rate=200)
    verdict, logs = run_chaos(settings, said.append)
    if logs is not None:
        said += [
            f"-- {log.name}\n" + log.read_text(errors="replace")[-2000:]
            for log in sorted(Path(logs).glob("logs/*.log"))
        ]
        shutil.rmtree(logs, ignore_errors=True)
    assert verdict.is_passed, "\n".join([*said, verdict.table()])
    assert verdict.sent > 0
    # How many fit into the time is the machine's business.
    assert sum(verdict.actions.values()) >= 1
