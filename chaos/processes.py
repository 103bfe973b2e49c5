"""The processes of a run, by the part they play: found, measured, ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.workplace import MARK, Workplace

# A word of the command line -> the part; the first that is found counts.
_WORDS = {
    "penstock.pubsub.agent": "agent",
    "pyspark.sql.streaming.python_streaming_source_runner": "reader",
    "pyspark.worker": "worker",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": "executor",
    "org.apache.spark.deploy.SparkSubmit": "driver JVM",
    "chaos.driver": "driver",
}


@dataclass(frozen=True)
class Member:
    """One process of a run."""

    role: str
    process: psutil.Process


def members(place: Workplace) -> list[Member]:
    """List the processes of a run, oldest first; of zombies only the reaper has to know."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(place.root):
                found.append(Member(_role(process), process))
    return sorted(found, key=lambda member: member.process.create_time())


def _role(process: psutil.Process) -> str:
    words = process.cmdline()
    for word, role in _WORDS.items():
        if word not in words:
            continue
        if role == "worker":
            # Workers are forked by a daemon with the same command line.
            parent = process.parent()
            is_forked = parent is not None and parent.cmdline() == words
            return role if is_forked else "daemon"
        return role
    return "other"


def of_role(place: Workplace, *roles: str) -> list[psutil.Process]:
    """List the processes that play one of these parts."""
    return [member.process for member in members(place) if member.role in roles]


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def is_running(process: psutil.Process) -> bool:
    """Tell whether a process is there and more than a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_gone(place: Workplace, seconds: float) -> list[Member]:
    """Wait until no process of a run is left; gives those that are."""
    left = [member.process for member in members(place)]
    psutil.wait_procs(left, timeout=seconds)
    return [member for member in members(place) if is_running(member.process)]


def end_all(place: Workplace) -> None:
    """End what is left of a run, whoever has started it."""
    left = [member.process for member in members(place) if member.process.pid != os.getpid()]
    send(left, signal.SIGKILL)
    psutil.wait_procs(left, timeout=10)


@dataclass(frozen=True)
class Figures:
    """What a process uses."""

    memory_bytes: int
    files: int
    sockets: int
    threads: int


def figures(process: psutil.Process) -> Figures:
    """Measure a process.

    Raises:
        psutil.Error: it is gone.
        OSError: the same, noticed later.
    """
    links = []
    for file in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(file.readlink()))
    sockets = sum(link.startswith("socket:") for link in links)
    with process.oneshot():
        return Figures(
            memory_bytes=process.memory_info().rss,
            files=len(links) - sockets,
            sockets=sockets,
            threads=process.num_threads(),
        )
