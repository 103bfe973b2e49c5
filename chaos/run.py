"""A chaos run: a query, a producer and a killer; then the count of what arrived."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.actions import plan
from chaos.killer import Killer
from chaos.processes import end_all, wait_gone
from chaos.producer import Producer
from chaos.service import SUBSCRIPTION, Service, service
from chaos.sink import SinkReader
from chaos.supervisor import Supervisor
from chaos.verdict import EXACTLY_ONCE, Verdict
from chaos.workplace import Workplace, workplace

_START_SECONDS = 180.0
_PROGRESS_SECONDS = 5.0
_TICK_SECONDS = 0.1
# After the last message: so long without any progress is a failure.
_STALL_SECONDS = 120.0
_GONE_SECONDS = 30.0
# Batches shall be many; but what has piled up while nothing ran has to be worked off, too.
_SECONDS_PER_BATCH = 5
# Of the lost and the repeated messages, so many are written down one by one.
_MOST_TOLD = 200


@dataclass(frozen=True)
class Settings:
    """What a run is like."""

    mode: str
    minutes: float
    seed: int
    executors: int = 2
    rate: int = 500
    with_breaches: bool = False
    # Keep the logs of a run that has passed, too.
    is_kept: bool = False

    @property
    def has_exactly_once_delivery(self) -> bool:
        """Every second seed of the exactly-once mode has a subscription of that kind."""
        return self.mode == EXACTLY_ONCE and self.seed % 2 == 1


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def spark_settings(place: Workplace, master: str) -> dict[str, str]:
    """Give the settings of a session that survives random kills."""
    return {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": place.java_options,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": place.java_options,
        "spark.executor.heartbeatInterval": "5s",
        "spark.network.timeout": "60s",
        "spark.task.maxFailures": "1000",
        "spark.stage.maxConsecutiveAttempts": "1000",
        # The master counts executors that ended, and would give the application up.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        "spark.log.level": "WARN",
        "spark.ui.showConsoleProgress": "false",
    }


def source_options(place: Workplace, running: Service, mode: str) -> dict[str, str]:
    """Give the options of the source."""
    options = {
        "endpoint": running.address,
        "subscriptionId": SUBSCRIPTION,
        "streamsPerExecutor": "2",
        "leaseDuration": "10s",
    }
    if mode == EXACTLY_ONCE:
        # The shortest that is allowed: objects shall come and go while the run goes on.
        options |= {"spoolLocation": str(place.spool), "suspectDuration": "60s"}
    return options


class ChaosRun:
    """One run, from the first message to the verdict."""

    def __init__(
        self,
        settings: Settings,
        place: Workplace,
        running: Service,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._place = place
        self._service = running
        self._tell = tell
        master = f"local-cluster[{settings.executors},1,1024]"
        self._supervisor = Supervisor(
            place,
            {
                "settings": spark_settings(place, master),
                "options": {
                    **source_options(place, running, settings.mode),
                    "maxRowsPerTrigger": str(int(_SECONDS_PER_BATCH * settings.rate)),
                },
                "checkpoint": str(place.checkpoint),
                "out": str(place.out),
            },
        )
        self._producer = Producer(running.address, settings.rate)
        self._killer = Killer(place, running, self._supervisor, self._tick)
        self._sink = SinkReader(place.out)
        self._end = 0.0
        self._told_at = 0.0

    def run(self) -> Verdict:
        """Run it to its end."""
        settings = self._settings
        try:
            self._supervisor.start()
            self._wait(lambda: self._supervisor.is_active)
            self._producer.start()
            # Only then is there something to disturb.
            self._wait(lambda: self._sink.row_count)
            self._end = time.monotonic() + settings.minutes * 60
            for action in plan(settings.seed, with_breaches=settings.with_breaches):
                if not self._pause(action.wait_seconds):
                    break
                self._killer.carry_out(action)
            self._killer.end_due(all_of_them=True)
            self._producer.stop()
            drained = self._drain()
            return self._judge(drained)
        finally:
            self._producer.close()
            self._supervisor.kill()

    def _wait(self, look: Callable[[], object]) -> None:
        end = time.monotonic() + _START_SECONDS
        while not look():
            if time.monotonic() > end:
                raise TimeoutError(f"the query has not started within {_START_SECONDS:g} s")
            self._tick()
            time.sleep(_TICK_SECONDS)

    def _pause(self, seconds: float) -> bool:
        """Let time go by; False when the run's time is up."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if time.monotonic() > self._end:
                return False
            self._tick()
            time.sleep(_TICK_SECONDS)
        return True

    def _tick(self) -> None:
        self._killer.end_due()
        now = time.monotonic()
        if now - self._told_at < _PROGRESS_SECONDS:
            return
        self._told_at = now
        self._place.keep_agent_logs()
        self._sink.look()
        left = max(0.0, self._end - now) if self._end else self._settings.minutes * 60
        self._tell(
            f"{left:5.0f} s left, sent {len(self._producer.sent):,}, "
            f"received {self._sink.row_count:,}, last: {self._killer.last}"
        )

    def _drain(self) -> float:
        """Wait until everything is in the sink and acknowledged; gives the seconds it took."""
        began = moved = time.monotonic()
        before = (-1, -1)
        while time.monotonic() - moved < _STALL_SECONDS:
            self._tick()
            self._sink.look()
            unacked = self._service.counters().unacked
            if unacked == 0 and self._producer.sent.keys() <= self._sink.where().keys():
                break
            if (now := (self._sink.row_count, unacked)) != before:
                before, moved = now, time.monotonic()
            time.sleep(0.5)
        return time.monotonic() - began

    def _judge(self, drained: float) -> Verdict:
        # The progress of an idle query is told every second: with it the suspects of now.
        time.sleep(2.0)
        settings, place = self._settings, self._place
        metrics = self._supervisor.state.get("metrics", {})
        is_ended = self._supervisor.finish()
        left = wait_gone(place, _GONE_SECONDS)
        self._sink.look()
        where = self._sink.where()
        lost = [one for one in self._producer.sent if one not in where]
        repeated = {one: batches for one, batches in where.items() if len(batches) > 1}
        counters = self._service.counters()
        restarts = self._supervisor.restarts
        verdict = Verdict(
            mode=settings.mode,
            seed=settings.seed,
            minutes=settings.minutes,
            has_exactly_once_delivery=settings.has_exactly_once_delivery,
            actions=dict(self._killer.counts),
            missed_actions=self._killer.missed,
            faults_struck=self._service.struck(),
            driver_restarts=restarts.drivers,
            failed_queries=restarts.failed_queries,
            hangs=restarts.hangs + (not is_ended),
            sent=len(self._producer.sent),
            received=self._sink.row_count,
            batches=self._sink.batch_count,
            batches_replaced=self._sink.replaced,
            redelivered=counters.redelivered,
            losses=len(lost),
            duplicates=sum(len(batches) - 1 for batches in repeated.values()),
            unacked=counters.unacked,
            outstanding=counters.outstanding,
            drain_seconds=drained,
            spool_objects=sum(1 for _ in place.spool.glob("*/*.arrow")),
            spool_suspects=metrics.get("spoolSuspects", 0),
            processes_left=[f"{member.role} {member.process.pid}" for member in left],
            directories_left=sum(1 for _ in place.agents.glob("*")),
        )
        self._write_down(verdict, lost, repeated, metrics)
        return verdict

    def _write_down(
        self,
        verdict: Verdict,
        lost: list[str],
        repeated: dict[str, list[int]],
        metrics: dict[str, Any],
    ) -> None:
        found = {
            "verdict": verdict.to_json(),
            "metrics": metrics,
            "lost": lost[:_MOST_TOLD],
            "repeated": dict(list(repeated.items())[:_MOST_TOLD]),
        }
        (self._place.logs / "verdict.json").write_text(json.dumps(found, indent=1))


def run_chaos(settings: Settings, tell: Callable[[str], None] = say) -> tuple[Verdict, Path | None]:
    """Run it; gives the verdict, and where the logs are if they are kept: of a run that failed."""
    with workplace() as place:
        try:
            with service(is_exactly_once=settings.has_exactly_once_delivery) as running:
                verdict = ChaosRun(settings, place, running, tell).run()
        except BaseException:
            (place.root / "keep").touch()
            tell(f"broken off; the logs are in {place.root}")
            raise
        finally:
            end_all(place)
        if verdict.is_passed and not settings.is_kept:
            return verdict, None
        (place.root / "keep").touch()
        return verdict, place.root
