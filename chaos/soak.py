"""A soak run: a query at a steady rate, undisturbed; what each process uses is watched."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.plot import Panel, svg
from chaos.processes import Figures, end_all, figures, members
from chaos.producer import Producer
from chaos.run import say, source_options, spark_settings
from chaos.service import Service, service
from chaos.supervisor import Supervisor
from chaos.verdict import EXACTLY_ONCE
from chaos.workplace import Workplace, workplace

_SAMPLE_SECONDS = 3.0
_PROGRESS_SECONDS = 15.0
_START_SECONDS = 180.0
_PAYLOAD_BYTES = 1000
_MEGABYTE = 1_000_000
# (process or spool, what) -> points in time
Series = dict[tuple[str, str], list[tuple[float, float]]]


@dataclass(frozen=True)
class SoakSettings:
    """What a soak run is like."""

    mode: str
    minutes: float
    rate: int
    # 0: tasks run in the driver's JVM.
    executors: int = 0

    @property
    def master(self) -> str:
        """Where tasks run."""
        return f"local-cluster[{self.executors},1,1024]" if self.executors else "local[2]"


class SoakRun:
    """One run, from the first message to the last sample."""

    def __init__(
        self,
        settings: SoakSettings,
        place: Workplace,
        running: Service,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._place = place
        self._service = running
        self._tell = tell
        self._supervisor = Supervisor(
            place,
            {
                "settings": spark_settings(place, settings.master),
                "options": source_options(place, running, settings.mode),
                "checkpoint": str(place.checkpoint),
                "out": "",
            },
        )
        self._producer = Producer(
            running.address, settings.rate, _PAYLOAD_BYTES, is_remembering=False
        )
        self.series: Series = defaultdict(list)
        self._began = 0.0

    def run(self) -> bool:
        """Run it to its end; False if the query has failed in the meantime."""
        try:
            self._supervisor.start()
            self._producer.start()
            self._wait_first()
            self._began = time.monotonic()
            end, told_at = self._began + self._settings.minutes * 60, 0.0
            while (now := time.monotonic()) < end:
                self._sample(now - self._began)
                if now - told_at > _PROGRESS_SECONDS:
                    told_at = now
                    self._tell(
                        f"{end - now:5.0f} s left, sent {self._producer.sent_count:,}, "
                        f"acknowledged {self._service.counters().acked:,}"
                    )
                time.sleep(_SAMPLE_SECONDS)
            self._producer.stop()
            restarts = self._supervisor.restarts
            is_stopped = self._supervisor.finish()
            return is_stopped and not (restarts.failed_queries or restarts.drivers)
        finally:
            self._producer.close()
            self._supervisor.kill()

    def _wait_first(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while not self._service.counters().acked:
            if time.monotonic() > end:
                raise TimeoutError(f"nothing has arrived in the first {_START_SECONDS:g} s")
            time.sleep(0.5)

    def _sample(self, second: float) -> None:
        found: dict[str, list[Figures]] = defaultdict(list)
        with contextlib.suppress(psutil.Error, OSError):
            found["emulator"].append(figures(psutil.Process(self._service.pid)))
        for member in members(self._place):
            with contextlib.suppress(psutil.Error, OSError):
                found[member.role].append(figures(member.process))
        for role, used in found.items():
            values = {
                "processes": len(used),
                "memory MB": sum(one.memory_bytes for one in used) / _MEGABYTE,
                "files": sum(one.files for one in used),
                "sockets": sum(one.sockets for one in used),
                "threads": sum(one.threads for one in used),
            }
            for name, value in values.items():
                self.series[role, name].append((second, value))
        if self._settings.mode == EXACTLY_ONCE:
            self._sample_spool(second)
        counters = self._service.counters()
        self.series["subscription", "not acknowledged"].append((second, counters.unacked))

    def _sample_spool(self, second: float) -> None:
        sizes = []
        for file in self._place.spool.glob("*/*.arrow"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(file.stat().st_size)
        self.series["spool", "objects"].append((second, len(sizes)))
        self.series["spool", "MB"].append((second, sum(sizes) / _MEGABYTE))


def table(series: Series) -> str:
    """Show the medians of the first and of the last quarter."""
    lines = [f"{'':32} {'first quarter':>14} {'last quarter':>14} {'change':>9}"]
    for (where, what), points in sorted(series.items()):
        quarter = max(1, len(points) // 4)
        first = statistics.median(value for _, value in points[:quarter])
        last = statistics.median(value for _, value in points[-quarter:])
        change = f"{last / first - 1:+9.1%}" if first else f"{'':>9}"
        lines.append(f"{where + ', ' + what:32} {first:14,.1f} {last:14,.1f} {change}")
    return "\n".join(lines)


def run_soak(settings: SoakSettings, plot: Path, tell: Callable[[str], None] = say) -> bool:
    """Run it, print the table and save the plot; False if the query has failed in between."""
    with workplace() as place:
        try:
            with service(is_exactly_once=False) as running:
                run = SoakRun(settings, place, running, tell)
                is_sound = run.run()
        except BaseException:
            (place.root / "keep").touch()
            tell(f"broken off; the logs are in {place.root}")
            raise
        finally:
            end_all(place)
        if not is_sound:
            (place.root / "keep").touch()
            tell(f"the query has failed; the logs are in {place.root}")
    tell(table(run.series))
    title = (
        f"{settings.mode}, {settings.rate} messages of {_PAYLOAD_BYTES} bytes per second, "
        f"{settings.minutes:g} minutes, {settings.master}"
    )
    panels = [Panel(where, what, points) for (where, what), points in sorted(run.series.items())]
    plot.write_text(svg(title, panels))
    tell(f"plot: {plot}")
    return is_sound
