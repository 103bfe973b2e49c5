"""The slow and plain way from Arrow to JSON, one value at a time: what the fast one must equal."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa


class Exact(str):
    """A number by its own digits."""


def plain(value: Any, kind: pa.DataType, *, is_nested: bool = False) -> Any:
    """Give what JSON has to hold for a value."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {
            _key(plain(key, kind.key_type, is_nested=True)): plain(
                item, kind.item_type, is_nested=True
            )
            for key, item in value
        }
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type, is_nested=True) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type, is_nested=True) for field in kind}
    return _leaf(value, kind, is_nested=is_nested)


def _key(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _leaf(value: Any, kind: pa.DataType, *, is_nested: bool) -> Any:  # noqa: PLR0911  # noqa: PLR0911
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return Exact(f"{value:f}") if is_nested else f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(" ", "microseconds")
        return text + "+00:00" if kind.tz else text
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dt.time):
        return value.isoformat("microseconds")
    return value


def parsed(line: bytes) -> Any:
    """Read a line with every digit of its numbers."""
    return json.loads(line, parse_float=Exact, parse_int=Exact)


def same(seen: Any, wanted: Any) -> bool:  # noqa: PLR0911  # noqa: PLR0911
    """Compare a parsed line with what it has to hold."""
    if isinstance(wanted, Exact):
        return isinstance(seen, Exact) and Decimal(seen) == Decimal(wanted)
    if isinstance(wanted, bool) or wanted is None:
        return seen is wanted
    if isinstance(wanted, int):
        return isinstance(seen, Exact) and int(seen) == wanted
    if isinstance(wanted, float):
        # As a number, or as its text where another value of the column is none.
        return float(seen) == wanted and math.copysign(1, float(seen)) == math.copysign(1, wanted)
    if isinstance(wanted, list):
        return len(seen) == len(wanted) and all(map(same, seen, wanted))
    if isinstance(wanted, dict):
        return list(seen) == list(wanted) and all(same(seen[key], wanted[key]) for key in wanted)
    return not isinstance(seen, Exact) and bool(seen == wanted)
