"""The directory of one run, and the environment of the processes that work in it.

Everything that Spark, agents and the sink write is below one directory, and each process that is
started for the run carries that directory's name in its environment, by which it is found again.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

MARK = "PENSTOCK_CHAOS"


@dataclass(frozen=True)
class Workplace:
    """Where things are."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint."""
        return self.root / "checkpoint"

    @property
    def spool(self) -> Path:
        """The spool of the exactly-once mode."""
        return self.root / "spool"

    @property
    def out(self) -> Path:
        """What the sink has written: one file for each batch."""
        return self.root / "out"

    @property
    def logs(self) -> Path:
        """Logs of drivers and agents, and the list of actions."""
        return self.root / "logs"

    @property
    def temporary(self) -> Path:
        """The temporary directory of all processes."""
        return self.root / "tmp"

    @property
    def agents(self) -> Path:
        """Where agents have their directories."""
        return self.temporary / f"penstock-{os.getuid()}"

    @property
    def java_options(self) -> str:
        """For JVMs that live for minutes and share few cores: start fast, do little on the side."""
        return f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={self.temporary}"

    def environment(self) -> dict[str, str]:
        """Give the environment of a driver, from which all others have theirs."""
        return {
            **os.environ,
            MARK: str(self.root),
            "TMPDIR": str(self.temporary),
            "SPARK_HOME": str(self.root / "spark"),
            "SPARK_LOCAL_DIRS": str(self.root / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            # Executors run elsewhere in the tree of files, and have to find what we find.
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }

    def keep_agent_logs(self) -> None:
        """Give agents' logs a second name, which stays when an agent takes its directory away."""
        for log in self.agents.glob("*/agent.log"):
            try:
                kept = self.logs / f"agent-{log.parent.name}-{log.stat().st_ino}.log"
                if not kept.exists():
                    kept.hardlink_to(log)
            except FileNotFoundError:
                continue


@contextmanager
def workplace() -> Iterator[Workplace]:
    """Make the directory of a run; it stays if the block says so by making a file `keep` in it."""
    # Short, for the sockets of the agents.
    place = Workplace(Path(tempfile.mkdtemp(prefix="penstock-chaos-")))
    for path in (place.out, place.logs, place.temporary):
        path.mkdir()
    # Executors write below SPARK_HOME, which must not be the installed package.
    home = place.root / "spark"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    try:
        yield place
    finally:
        if not (place.root / "keep").exists():
            shutil.rmtree(place.root, ignore_errors=True)
