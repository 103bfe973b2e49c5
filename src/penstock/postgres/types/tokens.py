"""Finds the pieces of quoted text forms (arrays, composites, hstore), all rows at once.

Runs on executors, pure numpy. The rows of a column lie one after the other in one array of bytes;
no quote and no escape reaches over the end of a row, so one pass finds those of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.postgres.types.reading import Bytes, Flags, Ints, binary_array

_QUOTE = ord('"')
_BACKSLASH = ord("\\")


@dataclass(frozen=True)
class Marks:
    """What each byte is. Bytes that are neither mark nor outside belong to quoted text."""

    # Quotes and escapes: syntax, not content.
    marks: Flags
    # Quotes that open or close; a piece without any is unquoted.
    quotes: Flags
    # Bytes that no quotes surround: content or separators.
    outside: Flags


def mark(data: Bytes, *, doubled_quotes: bool) -> Marks:
    """Find quotes and escapes.

    Args:
        data: The bytes of all rows.
        doubled_quotes: A quote inside quotes is written twice (composites); otherwise it follows a
            backslash (arrays, hstore). A backslash is written twice in all of them.
    """
    escapes = _escapes(data)
    quotes = data == _QUOTE
    if escapes is not None:
        quotes[1:] &= ~escapes[:-1]
    inside = np.logical_xor.accumulate(quotes) if quotes.any() else quotes
    outside = ~(inside | quotes)
    if doubled_quotes:
        # The second of a pair seems to open a quotation right where another ended.
        content = np.zeros(len(data), np.bool_)
        content[1:] = quotes[1:] & inside[1:] & quotes[:-1]
        marks = quotes & ~content
    else:
        marks = quotes
    return Marks(marks if escapes is None else marks | escapes, quotes, outside)


def _escapes(data: Bytes) -> Flags | None:
    # In a run of backslashes the first, third, ... escape what follows them.
    is_backslash = data == _BACKSLASH
    if not is_backslash.any():
        return None
    index = np.arange(len(data))
    starts_run = is_backslash.copy()
    starts_run[1:] &= ~is_backslash[:-1]
    run_start = np.maximum.accumulate(np.where(starts_run, index, 0))
    return np.asarray(is_backslash & ((index - run_start) % 2 == 0), np.bool_)


@dataclass(frozen=True)
class Pieces:
    """The pieces between separators, in order, of all rows."""

    texts: pa.Array
    is_quoted: Flags


def cut(data: Bytes, marks: Marks, content: Flags, ends: Ints) -> Pieces:
    """Cut the bytes at the positions in `ends` and keep of each piece what is content."""
    kept = content & ~marks.marks
    lengths = np.cumsum(kept, dtype=np.int64)
    quote_counts = np.cumsum(marks.quotes, dtype=np.int64)
    # A piece ends before its separator, which is never content.
    piece_ends = lengths[ends]
    quotes_before = quote_counts[ends]
    is_quoted = np.diff(quotes_before, prepend=0) > 0
    return Pieces(binary_array(pa.string(), piece_ends, data[kept]), is_quoted)
