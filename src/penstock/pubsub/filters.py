"""Spark's pushed filters, evaluated on Arrow columns; runs on the driver and in workers, pure.

A filter that is taken is not checked again by Spark, so the answer must be exactly Spark's: a
comparison with null is null, and only true keeps a row. What is not sure to agree is not taken.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.pubsub.encoding import ROW_SCHEMA

# The columns whose values can be compared, and the Python type that Spark sends for each.
_COMPARABLE: dict[str, type] = {
    "message_id": str,
    "ordering_key": str,
    "publish_time": datetime.datetime,
    "delivery_attempt": int,
}
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_PATTERNS: dict[type[Filter], str] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "match_substring",
}


def is_supported(pushed: Filter) -> bool:
    """Tell whether the filter can be evaluated here, with exactly Spark's answer."""
    if isinstance(pushed, Not):
        return is_supported(pushed.child)
    if isinstance(pushed, IsNull | IsNotNull):
        return len(pushed.attribute) == 1 and pushed.attribute[0] in ROW_SCHEMA.names
    if isinstance(pushed, In):
        return all(_is_comparable(pushed.attribute, value) for value in pushed.value)
    if type(pushed) in _PATTERNS:
        attribute, value = _operands(pushed)
        return isinstance(value, str) and _is_comparable(attribute, value)
    if isinstance(pushed, EqualNullSafe) or type(pushed) in _COMPARISONS:
        return _is_comparable(*_operands(pushed))
    return False


def _operands(pushed: Filter) -> tuple[tuple[str, ...], Any]:
    untyped: Any = pushed
    return untyped.attribute, untyped.value


def _is_comparable(attribute: tuple[str, ...], value: Any) -> bool:
    # A null among the values makes a result null that is_in would call false: left to Spark.
    expected = _COMPARABLE.get(attribute[0]) if len(attribute) == 1 else None
    if expected is None or type(value) is not expected:
        return False
    if isinstance(value, int):
        return -(2**31) <= value < 2**31
    return not isinstance(value, datetime.datetime) or value.tzinfo is not None


def keep(filters: list[Filter], rows: pa.RecordBatch) -> pa.RecordBatch:
    """Give the rows that pass every filter."""
    for pushed in filters:
        rows = rows.filter(pc.fill_null(_evaluate(pushed, rows), fill_value=False))
    return rows


def _evaluate(pushed: Filter, rows: pa.RecordBatch) -> pa.Array:
    """Give true, false or null for each row, as SQL does."""
    if isinstance(pushed, Not):
        return pc.invert(_evaluate(pushed.child, rows))
    column = rows.column(pushed.attribute[0])  # type: ignore[attr-defined]
    if isinstance(pushed, IsNull | IsNotNull):
        return column.is_null() if isinstance(pushed, IsNull) else column.is_valid()
    if isinstance(pushed, In):
        found = pc.is_in(column, value_set=pa.array(pushed.value, column.type))
        return pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), found)
    _, value = _operands(pushed)
    if type(pushed) in _PATTERNS:
        return pc.call_function(_PATTERNS[type(pushed)], [column], pc.MatchSubstringOptions(value))
    operand = pa.scalar(value, column.type)
    if isinstance(pushed, EqualNullSafe):
        return pc.fill_null(pc.equal(column, operand), fill_value=False)
    return pc.call_function(_COMPARISONS[type(pushed)], [column, operand])
