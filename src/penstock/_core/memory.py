"""This process's memory; runs in agents."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path


def resident_bytes() -> int:
    """Give the resident memory; where only the peak can be had, the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim_malloc() -> None:
    """Give freed memory back to the system, where the C library knows how to."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
