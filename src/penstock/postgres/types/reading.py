"""What all readers of a type's values share: the interface, misfits, and text as numpy arrays.

Runs on executors, pure. A reader turns a whole Arrow array of text into one of the column's Arrow
type; Python never runs per row. Error messages never hold values, so errors of Arrow, which do,
are not chained.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import RowError
from penstock.postgres.types.policy import OutOfRange

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def text_sql(column: str) -> str:
    """Give a type's text by cast: for built-in types whose cast is their output function."""
    return f"{column}::text"


def output_sql(column: str) -> str:
    """Give a type's text by its output function, also where a cast to text says something else.

    A cast shows inet with its netmask and strips char(n), and anyone may define one for a type of
    their own; pgoutput and format() call the output function. IS DISTINCT FROM rather than IS NOT
    NULL, because a row whose attributes are all null is not a null.
    """
    return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {column}) END"


def native_sql(column: str) -> str:
    """Give the column as it is: for types that ADBC reads exactly."""
    return column


@dataclass(frozen=True)
class Reader:
    """Reads the values of one type. Picklable; subclasses are frozen dataclasses too."""

    # The type as messages name it.
    label: str
    arrow: pa.DataType
    out_of_range: OutOfRange = field(default="fail", kw_only=True)

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Convert text as the type's output function writes it."""
        raise NotImplementedError

    def snapshot_sql(self, column: str) -> str:
        """Give the expression to select in a snapshot."""
        return text_sql(column)

    def from_snapshot(self, values: pa.Array, column: str) -> pa.Array:
        """Convert what ADBC gives for `snapshot_sql`."""
        return self.from_text(values, column)

    def without(self, values: pa.Array, misfits: pa.Array, column: str, fact: str) -> pa.Array:
        """Take out values that the Spark type cannot hold, or fail, as the policy says."""
        if not pc.any(misfits).as_py():
            return values
        if self.out_of_range != "null":
            raise self.misfit_error(column, fact)
        return pc.if_else(misfits, pa.scalar(None, values.type), values)

    def misfit_error(self, column: str, fact: str) -> RowError:
        """Build the error for a value that exists in PostgreSQL and not in Spark."""
        return RowError(
            "VALUE_OUT_OF_RANGE",
            f"Column '{column}' of type {self.label}",
            fact,
            "Set outOfRange to null (or to clamp, for dates and timestamps) to go on, correct the"
            " rows, or give the column a type that fits; see docs/postgres-types.md",
        )

    def unreadable(self, column: str, fact: str = "") -> RowError:
        """Build the error for a text that is not of the type at all."""
        return RowError(
            "VALUE_UNREADABLE",
            f"Column '{column}' of type {self.label}",
            fact or "a value is not in the text form of this type",
            "If the column's type was changed, restart the query so that it reads the new schema;"
            " otherwise report this with the type's definition",
        )

    def cast(self, texts: pa.Array, column: str) -> pa.Array:
        """Let Arrow parse the texts, all of which have to be of the type."""
        values = parsed(texts, self.arrow)
        if values is None:
            raise self.unreadable(column)
        return values


def parsed(texts: pa.Array, arrow: pa.DataType) -> pa.Array | None:
    """Let Arrow parse the texts; None if it cannot. Its errors show values, so none gets out."""
    try:
        return texts.cast(arrow)
    except pa.ArrowInvalid:
        return None


def as_string(texts: pa.Array) -> pa.Array:
    """Give text as a plain string array, whatever form it came in."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if isinstance(texts, pa.ExtensionArray):
        texts = texts.storage
    return texts if texts.type == pa.string() else texts.cast(pa.string())


@dataclass(frozen=True)
class TextBytes:
    """A string array as numpy sees it: row i is `data[ends[i - 1]:ends[i]]`; nulls are empty."""

    data: Bytes
    starts: Ints
    ends: Ints
    valid: Flags

    @property
    def has_nulls(self) -> bool:
        """Whether any row is null."""
        return not bool(self.valid.all())


def text_bytes(texts: pa.Array) -> TextBytes:
    """Look into a string array, whatever its slice and whatever lies under its nulls."""
    texts = as_string(texts)
    valid = np.asarray(texts.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if texts.null_count:
        texts = pc.fill_null(texts, "")
    _, offset_buffer, data_buffer = texts.buffers()
    if not len(texts):
        nothing = np.zeros(0, np.int64)
        return TextBytes(np.zeros(0, np.uint8), nothing, nothing, valid)
    narrow = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    offsets = narrow.astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    return TextBytes(data, offsets[:-1], offsets[1:], valid)


def binary_array(
    type_: pa.DataType, ends: Ints, data: Bytes | bytes, valid: Flags | None = None
) -> pa.Array:
    """Build a string or binary array of int32 offsets from where each value ends."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    bits = None
    if valid is not None and not valid.all():
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_, len(ends), buffers)
