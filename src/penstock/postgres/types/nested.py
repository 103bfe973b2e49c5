"""Readers of arrays, composites and hstore from their text forms. Run on executors, pure.

Text, also in snapshots: ADBC refuses arrays whose first index is not 1, gives those of several
dimensions as one flat list, and cannot read composites. Parsing runs on whole columns (see
tokens.py); what the pieces hold is read by the readers of their own types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.postgres.types.reading import (
    Flags,
    Ints,
    Reader,
    TextBytes,
    output_sql,
    text_bytes,
)
from penstock.postgres.types.tokens import Marks, Pieces, cut, mark

Depths = npt.NDArray[np.int8]


@dataclass(frozen=True)
class NestedReader(Reader):
    """A type that is read by its text, in snapshots too."""

    expression: Callable[[str], str] = output_sql

    def snapshot_sql(self, column: str) -> str:
        """Give the text: by cast if the type and its elements are built in."""
        return self.expression(column)


@dataclass(frozen=True)
class ArrayReader(NestedReader):
    """`{1,NULL,3}`: an array of so many dimensions; a first index other than 1 is not kept."""

    element: Reader = field(kw_only=True)
    dimensions: int = 1
    delimiter: str = ","

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Parse; arrays with another number of dimensions follow the policy."""
        rows = text_bytes(texts)
        marks = mark(rows.data, doubled_quotes=False)
        is_open = (rows.data == ord("{")) & marks.outside
        is_close = (rows.data == ord("}")) & marks.outside
        depth = np.cumsum(is_open.astype(np.int8) - is_close.astype(np.int8), dtype=np.int8)
        is_empty = rows.ends - rows.starts == 2
        misfits = rows.valid & ~is_empty & (_deepest(rows, depth) != self.dimensions)
        if misfits.any():
            fact = f"an array does not have the column's {self.dimensions} dimension(s)"
            kept = self.without(texts, pa.array(misfits), column, fact)
            return self.from_text(kept, column)
        is_close[rows.ends[is_empty] - 1] = False
        return self._build(rows, marks, depth, is_open, is_close, column)

    def _build(
        self,
        rows: TextBytes,
        marks: Marks,
        depth: Depths,
        is_open: Flags,
        is_close: Flags,
        column: str,
    ) -> pa.Array:
        innermost = self.dimensions
        is_delimiter = (rows.data == ord(self.delimiter)) & marks.outside
        is_end = (is_delimiter & (depth == innermost)) | (is_close & (depth == innermost - 1))
        ends = np.flatnonzero(is_end)
        # Bounds as in [2:3]={...} stand at depth 0.
        content = (depth > 0) & ~(is_open | is_close | is_delimiter)
        pieces = cut(rows.data, marks, content, ends)
        values = self.element.from_text(_with_nulls(pieces), column)
        # From the innermost braces outwards: how many items stood before the end of each group.
        for level in range(innermost, 1, -1):
            closes = np.flatnonzero(is_close & (depth == level - 1))
            values = _list_array(_list_type(values.type), ends, closes, values, None)
            ends = closes
        return _list_array(self.arrow, ends, rows.ends - 1, values, rows.valid)


def _deepest(rows: TextBytes, depth: Depths) -> Ints:
    deepest = np.zeros(len(rows.starts), np.int64)
    filled = rows.ends > rows.starts
    if filled.any():
        deepest[filled] = np.maximum.reduceat(depth, rows.starts[filled])
    return deepest


def _with_nulls(pieces: Pieces) -> pa.Array:
    is_null = pc.and_(pc.equal(pieces.texts, "NULL"), pa.array(~pieces.is_quoted))
    return pc.if_else(is_null, None, pieces.texts) if pc.any(is_null).as_py() else pieces.texts


def _list_type(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


def _list_array(
    type_: pa.DataType, item_ends: Ints, group_ends: Ints, items: pa.Array, valid: Flags | None
) -> pa.Array:
    offsets = np.zeros(len(group_ends) + 1, np.int32)
    offsets[1:] = np.searchsorted(item_ends, group_ends, side="right")
    mask = None if valid is None or valid.all() else pa.array(~valid)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=type_, mask=mask)


@dataclass(frozen=True)
class CompositeReader(NestedReader):
    """`(1,"a b",)`: a struct; an attribute that is written as nothing at all is null."""

    attributes: tuple[Reader, ...] = field(kw_only=True)

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Parse each attribute by its own reader."""
        rows = text_bytes(texts)
        count = len(self.attributes)
        marks = mark(rows.data, doubled_quotes=True)
        starts, lasts = rows.starts[rows.valid], rows.ends[rows.valid] - 1
        is_end = (rows.data == ord(",")) & marks.outside
        is_end[lasts] = True
        content = ~is_end
        content[starts] = False
        ends = np.flatnonzero(is_end)
        pieces_before = np.searchsorted(ends, lasts, side="right")
        if not np.array_equal(pieces_before, np.arange(1, len(lasts) + 1) * count):
            raise self.unreadable(column, f"a value does not have {count} attribute(s)")
        pieces = cut(rows.data, marks, content, ends)
        is_null = pa.array(~pieces.is_quoted & _is_blank(pieces.texts))
        filled = pc.if_else(is_null, None, pieces.texts)
        places = _places(rows)
        children = []
        for number, reader in enumerate(self.attributes):
            own = filled.take(pa.array(np.arange(number, len(filled), count)))
            values = reader.from_text(own, column)
            children.append(values if places is None else values.take(places))
        mask = pa.array(~rows.valid) if rows.has_nulls else None
        return pa.StructArray.from_arrays(children, fields=list(self.arrow), mask=mask)


def _is_blank(texts: pa.Array) -> Flags:
    return np.asarray(pc.equal(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))


def _places(rows: TextBytes) -> pa.Array | None:
    # Where each row is among the rows that are not null.
    if not rows.has_nulls:
        return None
    return pa.array(np.cumsum(rows.valid) - 1, mask=~rows.valid)


@dataclass(frozen=True)
class HstoreReader(NestedReader):
    """`"a"=>"1", "b"=>NULL`: a map of strings; keys and values are always quoted."""

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Parse into a map."""
        rows = text_bytes(texts)
        marks = mark(rows.data, doubled_quotes=False)
        is_end = ((rows.data == ord(",")) | (rows.data == ord("="))) & marks.outside
        # The last value of a row ends with the row; the byte there is a quote or the L of NULL.
        filled = rows.ends[rows.ends > rows.starts]
        is_end[filled - 1] = True
        ends = np.flatnonzero(is_end)
        pieces = cut(rows.data, marks, ~marks.outside, ends)
        if len(ends) % 2:
            raise self.unreadable(column)
        keys = pieces.texts.take(pa.array(np.arange(0, len(ends), 2)))
        items = pc.if_else(pa.array(pieces.is_quoted), pieces.texts, None)
        items = items.take(pa.array(np.arange(1, len(ends), 2)))
        offsets = np.zeros(len(rows.ends) + 1, np.int32)
        offsets[1:] = np.searchsorted(ends, rows.ends, side="left") // 2
        mask = pa.array(~rows.valid) if rows.has_nulls else None
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=self.arrow, mask=mask)
