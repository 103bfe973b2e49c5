"""An end of the demo that somebody asks for, by Ctrl-C or SIGTERM: it cleans up like any other."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Turns the signals into `SystemExit` with the shell's number, and remembers that they came.

    What is under way may answer the exception with one of its own, or swallow it.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}

    def __enter__(self) -> Self:
        """Begin to listen."""
        self.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Take the signals, also from who has taken them meanwhile."""
        for number in _SIGNALS:
            signal.signal(number, self._leave)

    def leave_if_asked(self) -> None:
        """End now, if a signal has come."""
        if self._status is not None:
            raise SystemExit(self._status)

    def _leave(self, number: int, _frame: FrameType | None) -> None:
        self._status = 128 + number
        raise SystemExit(self._status)
