"""Rows as they lie in the messages: one column of all rows at a time; pure.

All rows of a table move in step: for each column the kind bytes and the lengths are gathered for
all rows at once, then every row's position moves on by its own length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.postgres.pgoutput.messages import Bools, Bytes, Ints, Messages, malformed
from penstock.postgres.pgoutput.messages import read_numbers as read

NULL, UNCHANGED, TEXT = b"nut"
# Never asked for, so it never comes.
_BINARY = ord("b")

_KNOWN = np.zeros(256, np.bool_)
_KNOWN[[NULL, UNCHANGED, TEXT]] = True

# Kind byte and length, before a text.
_HEAD_SIZE = 5


@dataclass(frozen=True)
class Cells:
    """One column of some rows; what is no text has length 0."""

    kinds: Bytes
    starts: Ints
    lengths: Ints
    is_all_text: bool

    def take(self, rows: Ints) -> Cells:
        """Give some of the rows."""
        kinds = self.kinds[rows]
        is_all_text = self.is_all_text or bool((kinds == TEXT).all())
        return Cells(kinds, self.starts[rows], self.lengths[rows], is_all_text)

    def filled(self, rows: Ints, older: Cells) -> Cells:
        """Give the same with unchanged values of `rows` taken from `older`, where it has them."""
        if self.is_all_text:
            return self
        missing = (self.kinds[rows] == UNCHANGED) & (older.kinds == TEXT)
        if not missing.any():
            return self
        kinds, starts, lengths = self.kinds.copy(), self.starts.copy(), self.lengths.copy()
        at = rows[missing]
        kinds[at], starts[at], lengths[at] = TEXT, older.starts[missing], older.lengths[missing]
        return Cells(kinds, starts, lengths, bool((kinds == TEXT).all()))

    def unchanged(self) -> Bools | None:
        """Tell which values were left out because they did not change; None if there are none."""
        if self.is_all_text:
            return None
        mask = self.kinds == UNCHANGED
        return mask if mask.any() else None


class TupleWalk:
    """Goes through the rows of one table, a column at a time."""

    def __init__(self, data: Bytes, positions: Ints, ends: Ints, column_count: int) -> None:
        """Begin at the tuples' first bytes.

        Raises:
            WireError: they do not have as many columns as the table.
        """
        if (positions + 2 > ends).any():
            raise malformed("a row ends too early")
        if (read(data, positions, 2) != column_count).any():
            raise malformed(f"a row does not have the {column_count} columns of its table")
        self._data = data
        self._ends = ends
        # Where the next column begins.
        self.positions = positions + 2

    def next_column(self) -> Cells:
        """Read the next column. Its cells lie within their messages.

        Raises:
            WireError: a value is of an unknown kind or longer than its message.
        """
        positions, ends = self.positions, self._ends
        if (positions >= ends).any():
            raise malformed("a row ends too early")
        kinds = self._data[positions]
        is_text = kinds == TEXT
        if is_text.all():
            starts, lengths = self._read_lengths(positions, ends)
            self.positions = starts + lengths
            return Cells(kinds, starts, lengths, is_all_text=True)
        _check_kinds(kinds)
        starts = positions + 1
        lengths = np.zeros(len(positions), np.int64)
        rows = np.flatnonzero(is_text)
        if len(rows):
            starts[rows], lengths[rows] = self._read_lengths(positions[rows], ends[rows])
        self.positions = starts + lengths
        return Cells(kinds, starts, lengths, is_all_text=False)

    def _read_lengths(self, positions: Ints, ends: Ints) -> tuple[Ints, Ints]:
        starts = positions + _HEAD_SIZE
        if (starts > ends).any():
            raise malformed("a row ends too early")
        lengths = read(self._data, positions + 1, 4)
        if (starts + lengths > ends).any():
            raise malformed("a value is longer than its message")
        return starts, lengths


def _check_kinds(kinds: Bytes) -> None:
    unknown = np.flatnonzero(~_KNOWN[kinds])
    if len(unknown):
        kind = int(kinds[unknown[0]])
        hint = " (binary, which was not asked for)" if kind == _BINARY else ""
        raise malformed(f"a value is of the unknown kind {chr(kind)!a}{hint}")


def text_column(messages: Messages, cells: Cells) -> pa.StringArray:
    """Copy the texts of a column into an Arrow array; all that is no text is null.

    The rows must be in the order of the buffer.

    Raises:
        WireError: a text is not UTF-8.
    """
    count = len(cells.starts)
    if not count:
        return pa.array([], pa.string())
    # Texts and the gaps between them, alternating, are an Arrow array that needs no copy; taking
    # every second element is then one gather in C++.
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = cells.starts
    np.add(cells.starts, cells.lengths, out=offsets[1::2], casting="unsafe")
    spans = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), messages.buffer]
    )
    texts = spans.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    _, text_offsets, text_data = texts.buffers()
    validity = None
    if not cells.is_all_text:
        validity = pa.py_buffer(np.packbits(cells.kinds == TEXT, bitorder="little"))
    column = pa.Array.from_buffers(pa.string(), count, [validity, text_offsets, text_data])
    _check_utf8(column, text_data)
    return column


def _check_utf8(column: pa.StringArray, data: pa.Buffer | None) -> None:
    # Most columns are ASCII, and to see that is ten times quicker than to decode.
    if data is None or not data.size or np.frombuffer(data, np.uint8).max() < 0x80:
        return
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise malformed(
            "a text is not UTF-8; the connection must have client_encoding UTF8, and the "
            "database must not be SQL_ASCII with other bytes in it"
        ) from None
