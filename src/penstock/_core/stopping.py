"""The orderly end of a source's process: Spark stops a query with SIGTERM; runs on the driver."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

# The process ends after so long, whatever stands in the way of an orderly end.
_LONGEST_SECONDS = 15.0


def end_on_sigterm(action: Callable[[], None]) -> None:
    """Have something done when Spark stops the query; then the process ends."""

    def end() -> None:
        try:
            action()
        finally:
            os._exit(0)

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        # Spark may send it again.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # In a thread, because the one that is interrupted may hold a lock right now; not a daemon,
        # because the process must not end before it.
        threading.Thread(target=end, name="penstock-stop").start()
        last = threading.Timer(_LONGEST_SECONDS, os._exit, (1,))
        last.daemon = True
        last.start()

    signal.signal(signal.SIGTERM, on_signal)
