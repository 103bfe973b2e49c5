"""Readers of types with one plain value: text, numbers, booleans, bytes, uuids, oids.

Run on executors, pure.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.postgres.types.reading import (
    Reader,
    as_string,
    binary_array,
    native_sql,
    text_bytes,
    text_sql,
)

# The two hex digits of each byte, as one little-endian pair.
_HEX_PAIRS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
# Where the digits stand in 8-4-4-4-12.
_UUID_DIGITS = np.array([at for at in range(36) if at not in (8, 13, 18, 23)])


@dataclass(frozen=True)
class TextReader(Reader):
    """Text stays text: strings, and every type whose Spark type is a string of its text form."""

    expression: Callable[[str], str] = text_sql

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:  # noqa: ARG002 - cannot fail
        """Give the text itself."""
        return as_string(texts)

    def snapshot_sql(self, column: str) -> str:
        """Give the text, by cast, by output function or as the type itself."""
        return self.expression(column)


@dataclass(frozen=True)
class CastReader(Reader):
    """Integers and floats: Arrow parses their text and ADBC reads them exactly."""

    expression: Callable[[str], str] = native_sql

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Parse numbers; floats include NaN, Infinity and -Infinity."""
        return self.cast(as_string(texts), column)

    def snapshot_sql(self, column: str) -> str:
        """Give the column, or its text where ADBC would read it as a signed number."""
        return self.expression(column)

    def from_snapshot(self, values: pa.Array, column: str) -> pa.Array:
        """Take numbers as they are."""
        return values if values.type == self.arrow else self.from_text(values, column)


@dataclass(frozen=True)
class NativeReader(Reader):
    """A type that ADBC reads exactly, in the Arrow type that it has here too."""

    def snapshot_sql(self, column: str) -> str:
        """Give the column itself."""
        return column

    def from_snapshot(self, values: pa.Array, column: str) -> pa.Array:  # noqa: ARG002 - cannot fail
        """Take the values as they are."""
        return values


@dataclass(frozen=True)
class BooleanReader(NativeReader):
    """`t` and `f`."""

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Compare with `t`."""
        texts = as_string(texts)
        is_true = pc.equal(texts, "t")
        if pc.sum(is_true).as_py() != len(texts) - texts.null_count:
            is_false = pc.equal(texts, "f")
            if not pc.all(pc.or_(is_true, is_false), min_count=0).as_py():
                raise self.unreadable(column)
        return is_true


@dataclass(frozen=True)
class ByteaReader(NativeReader):
    """`\\x` and hexadecimal digits."""

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Decode the digits of all rows in one call."""
        rows = text_bytes(texts)
        lengths = np.where(rows.valid, rows.ends - rows.starts, 2)
        starts = rows.starts[rows.valid]
        is_hex = bool((lengths >= 2).all()) and bool((lengths % 2 == 0).all())
        if not is_hex or (rows.data[starts] != ord("\\")).any():
            raise self.unreadable(column, "a value is not in hex form (bytea_output)")
        is_digit = np.ones(len(rows.data), np.bool_)
        is_digit[starts] = False
        is_digit[starts + 1] = False
        try:
            data = binascii.unhexlify(rows.data[is_digit].tobytes())
        except binascii.Error:
            raise self.unreadable(column, "a value is not in hex form (bytea_output)") from None
        return binary_array(pa.binary(), np.cumsum((lengths - 2) // 2), data, rows.valid)


@dataclass(frozen=True)
class UuidReader(Reader):
    """A string in the 8-4-4-4-12 form; snapshots carry 16 bytes, half of what text would take."""

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:  # noqa: ARG002 - cannot fail
        """Give the text itself: PostgreSQL always writes the canonical form."""
        return as_string(texts)

    def snapshot_sql(self, column: str) -> str:
        """Give the column itself."""
        return column

    def from_snapshot(self, values: pa.Array, column: str) -> pa.Array:  # noqa: ARG002 - cannot fail
        """Write the bytes of all rows as text."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        count = len(values)
        valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        raw = np.frombuffer(values.buffers()[1] or b"", np.uint8)
        raw = raw[values.offset * 16 : (values.offset + count) * 16]
        text = np.full((count, 36), ord("-"), np.uint8)
        text[:, _UUID_DIGITS] = _HEX_PAIRS[raw].view(np.uint8).reshape(count, 32)
        ends = np.arange(1, count + 1, dtype=np.int64) * 36
        return binary_array(pa.string(), ends, text.reshape(-1), valid)
