"""Watching another process; runs in agents."""

from __future__ import annotations

import os
import select


class ProcessWatch:
    """Tells whether a process is still alive; a later one of the same id does not deceive it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd: int | None = None
        self._is_gone = False
        if hasattr(os, "pidfd_open"):
            try:
                self._fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._is_gone = True
            except OSError:  # a kernel or sandbox without it
                self._fd = None

    def is_alive(self) -> bool:
        """Look once, without waiting."""
        if self._is_gone:
            return False
        if self._fd is not None:
            # A pidfd becomes readable when its process ends.
            self._is_gone = bool(select.select([self._fd], [], [], 0)[0])
        else:
            try:
                os.kill(self._pid, 0)
            except ProcessLookupError:
                self._is_gone = True
            except PermissionError:
                pass
        return not self._is_gone
