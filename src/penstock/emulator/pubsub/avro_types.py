"""Avro types that check a message, binary or JSON; pure.

Checks walk the encoded bytes and keep nothing, so a message cannot make them allocate: a decoder
that builds the value exhausts memory, or the C stack, on a hostile message.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.emulator.pubsub.schema_types import (
    MAX_NESTING,
    MessageMismatchError,
    json_kind,
    require,
)

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def is_byte_text(value: object) -> bool:
    """Tell whether this is Avro's JSON form of bytes: a character per byte, codes 0 to 255."""
    return isinstance(value, str) and max(value, default="") <= "\xff"


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise MessageMismatchError("the data ends inside a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 and number < 1 << 64:
            return (number >> 1) ^ -(number & 1), at
    raise MessageMismatchError("a number is longer than 64 bits")


def _skip_boolean(data: bytes, at: int) -> int:
    if data[at : at + 1] > b"\x01":
        raise MessageMismatchError("a boolean is neither 0 nor 1")
    return at + 1


def _skip_bytes(data: bytes, at: int) -> int:
    size, at = _read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise MessageMismatchError("a length is negative or reaches past the end of the data")
    return at + size


def _skip_string(data: bytes, at: int) -> int:
    start, end = _read_long(data, at)[1], _skip_bytes(data, at)
    try:
        data[start:end].decode()
    except UnicodeDecodeError:
        raise MessageMismatchError("a string is not UTF-8") from None
    return end


class Node(Protocol):
    """An Avro type."""

    @property
    def label(self) -> str:
        """The name in errors and in the JSON form of unions."""
        ...

    def skip(self, data: bytes, at: int, depth: int) -> int:
        """Check binary data from `at` on; returns where the value ends."""
        ...

    def check(self, value: Any, depth: int) -> None:
        """Check a parsed JSON value."""
        ...


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts."""

    label: str
    pass_over: Callable[[bytes, int], int]
    accepts: Callable[[Any], bool]

    def skip(self, data: bytes, at: int, depth: int) -> int:  # noqa: ARG002  # Node's form
        """See `Node`."""
        end = self.pass_over(data, at)
        if end > len(data):
            raise MessageMismatchError(f"the data ends inside a value of type {self.label}")
        return end

    def check(self, value: Any, depth: int) -> None:  # noqa: ARG002  # Node's form
        """See `Node`."""
        if not self.accepts(value):
            raise MessageMismatchError(f"{json_kind(value)} that is not a valid {self.label}")


def integer(
    label: str, low: int, high: int, accepts: Callable[[Any], bool] | None = None
) -> Scalar:
    """Make a type that is a varint in a range."""

    def pass_over(data: bytes, at: int) -> int:
        number, at = _read_long(data, at)
        if not low <= number <= high:
            raise MessageMismatchError(f"a number out of range for {label}")
        return at

    return Scalar(label, pass_over, accepts or (lambda v: type(v) is int and low <= v <= high))


def _real(label: str, size: int) -> Scalar:
    # The comparison is false for an infinity, which a JSON number can overflow to.
    largest = sys.float_info.max
    return Scalar(
        label, lambda _, at: at + size, lambda v: type(v) in (int, float) and abs(v) <= largest
    )


PRIMITIVES: Final[dict[str, Node]] = {
    "null": Scalar("null", lambda _, at: at, lambda v: v is None),
    "boolean": Scalar("boolean", _skip_boolean, lambda v: type(v) is bool),
    "int": integer("int", -(1 << 31), (1 << 31) - 1),
    "long": integer("long", -(1 << 63), (1 << 63) - 1),
    "float": _real("float", 4),
    "double": _real("double", 8),
    "bytes": Scalar("bytes", _skip_bytes, is_byte_text),
    "string": Scalar("string", _skip_string, _is_text),
}


def _deeper(depth: int) -> int:
    if depth >= MAX_NESTING:
        raise MessageMismatchError(f"values are nested more than {MAX_NESTING} levels deep")
    return depth + 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """An array or a map: blocks of items, with a key before each item of a map."""

    label: str
    item: Node

    def skip(self, data: bytes, at: int, depth: int) -> int:
        """See `Node`."""
        depth, keyed = _deeper(depth), self.label == "map"
        while True:
            count, at = _read_long(data, at)
            if count == 0:
                return at
            size, at = _read_long(data, at) if count < 0 else (0, at)
            end = at + size
            for _ in range(abs(count)):
                start = at
                at = self.item.skip(data, _skip_string(data, at) if keyed else at, depth)
                # Items of no bytes (nulls) could be claimed by the trillion; one shows all.
                if at == start:
                    break
            if count < 0 and at != end:
                raise MessageMismatchError(f"a block of the {self.label} has a wrong size")

    def check(self, value: Any, depth: int) -> None:
        """See `Node`."""
        depth = _deeper(depth)
        require(dict if self.label == "map" else list, self.label, value)
        if self.label == "map":
            for key in value:
                PRIMITIVES["string"].check(key, depth)
            value = value.values()
        for item in value:
            self.item.check(item, depth)


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types."""

    label: str
    branches: dict[str, Node]

    def skip(self, data: bytes, at: int, depth: int) -> int:
        """See `Node`."""
        index, at = _read_long(data, at)
        if not 0 <= index < len(self.branches):
            raise MessageMismatchError(f"a branch number out of range for {self.label}")
        return list(self.branches.values())[index].skip(data, at, _deeper(depth))

    def check(self, value: Any, depth: int) -> None:
        """See `Node`."""
        tag, inner = ("null", None) if value is None else ("", value)
        if isinstance(value, dict) and len(value) == 1:
            ((tag, inner),) = value.items()
        if tag not in self.branches or (tag == "null") is not (value is None):
            raise MessageMismatchError(f'expected {self.label}, as null or {{"TYPE": value}}')
        self.branches[tag].check(inner, _deeper(depth))


@dataclass(frozen=True, slots=True)
class Record:
    """Named fields, in order."""

    label: str
    fields: dict[str, Node]

    def skip(self, data: bytes, at: int, depth: int) -> int:
        """See `Node`."""
        depth = _deeper(depth)
        for name, node in self.fields.items():
            try:
                at = node.skip(data, at, depth)
            except MessageMismatchError as error:
                error.path.append(name)
                raise
        return at

    def check(self, value: Any, depth: int) -> None:
        """See `Node`."""
        depth = _deeper(depth)
        require(dict, f"record {self.label}", value)
        # A default serves readers of older data only: an encoded message has every field.
        if missing := [name for name in self.fields if name not in value]:
            raise MessageMismatchError(f"record {self.label} lacks {', '.join(missing)}")
        if extra := len(value) - len(self.fields):
            raise MessageMismatchError(f"{extra} field(s) that record {self.label} does not have")
        for name, node in self.fields.items():
            try:
                node.check(value[name], depth)
            except MessageMismatchError as error:
                error.path.append(name)
                raise
