"""CPU time of a benchmark's processes, by the part they play."""

from __future__ import annotations

import os

import psutil

ROLES = ("emulator", "agent", "Python workers", "JVM", "driver (Python)")


CpuTimes = dict[int, tuple[str, float]]


def cpu_times(emulator_pid: int) -> CpuTimes:
    """Seconds of CPU that each process has used so far, with its part; by process id."""
    used: CpuTimes = {}
    for process in psutil.process_iter():
        try:
            role = _role(process, emulator_pid)
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if role is not None:
            used[process.pid] = role, times.user + times.system
    return used


def _role(process: psutil.Process, emulator_pid: int) -> str | None:
    if process.pid == emulator_pid:
        return "emulator"
    if process.pid == os.getpid():
        return "driver (Python)"
    words = process.cmdline()
    if "penstock.pubsub.agent" in words:
        return "agent"
    if any(word.startswith("pyspark.") for word in words):
        return "Python workers"
    if words and words[0].endswith("java"):
        return "JVM"
    return None


def used_between(before: CpuTimes, after: CpuTimes) -> dict[str, float]:
    """Seconds that each part has used; a process that has ended in between is not counted."""
    used = dict.fromkeys(ROLES, 0.0)
    for pid, (role, seconds) in after.items():
        used[role] += seconds - before.get(pid, (role, 0.0))[1]
    return used
