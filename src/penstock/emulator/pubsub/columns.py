"""Per-message facts as growing numpy columns; runs in the emulator's event loop.

A position is a message's number in its topic, counted from the topic's beginning and never
reused. A column holds one value for each position of a window that grows at the end and is
trimmed at the front.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]


def lengths(values: pa.BinaryArray | pa.StringArray) -> npt.NDArray[np.int32]:
    """Give the length in bytes of each value of an Arrow array without nulls."""
    if not len(values):
        return np.empty(0, np.int32)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    found: npt.NDArray[np.int32] = offsets[1:] - offsets[:-1]
    return found


class Column:
    """One value per position in [first, end)."""

    def __init__(self, dtype: Any, first: int = 0) -> None:
        self._values = np.empty(16, dtype)
        # Where in _values the value of position `first` stands.
        self._offset = 0
        self.first = first
        self.end = first

    def __len__(self) -> int:
        return self.end - self.first

    def extend(self, count: int, values: Any) -> None:
        """Add `count` positions; `values` is one value for all of them or an array."""
        used = self._offset + len(self)
        if used + count > len(self._values):
            self._reallocate(len(self) + count)
            used = len(self)
        self._values[used : used + count] = values
        self.end += count

    def trim(self, first: int) -> None:
        """Forget the positions before `first`."""
        first = min(max(first, self.first), self.end)
        self._offset += first - self.first
        self.first = first
        if self._offset > 4096 and self._offset > len(self):
            self._reallocate(len(self))

    def open_front(self, first: int, value: Any) -> None:
        """Take earlier positions in again, all with one value."""
        kept = self.window(self.first, self.end)
        self._values = np.concatenate([np.full(self.first - first, value, kept.dtype), kept])
        self._offset = 0
        self.first = first

    def window(self, low: int, high: int) -> npt.NDArray[Any]:
        """Give the values of [low, high) as a writable view."""
        start = self._offset - self.first
        return self._values[start + low : start + high]

    def __getitem__(self, positions: Positions) -> npt.NDArray[Any]:
        return self._values[positions + (self._offset - self.first)]

    def __setitem__(self, positions: Positions, values: Any) -> None:
        self._values[positions + (self._offset - self.first)] = values

    def _reallocate(self, needed: int) -> None:
        # A quarter of slack keeps appending cheap without doubling the memory of a large backlog.
        grown = np.empty(max(16, needed + needed // 4), self._values.dtype)
        grown[: len(self)] = self._values[self._offset : self._offset + len(self)]
        self._values = grown
        self._offset = 0
