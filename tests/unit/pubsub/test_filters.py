"""Pushed filters give exactly Spark's answer, nulls included."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
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
from penstock.pubsub.filters import is_supported, keep


def moment(second: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1, 0, 0, second, tzinfo=datetime.UTC)


KEYS = ["a", "ab", None, "b", "\u00e9"]
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "message_id": str(number),
            "publish_time": moment(number),
            "data": b"x",
            "attributes": None if number == 3 else [("k", "v")],
            "ordering_key": key,
            "delivery_attempt": None if number == 0 else number,
        }
        for number, key in enumerate(KEYS)
    ],
    schema=ROW_SCHEMA,
)
KEY = ("ordering_key",)
TIME = ("publish_time",)
ATTEMPT = ("delivery_attempt",)


def kept(*filters: Filter) -> list[int]:
    assert all(is_supported(one) for one in filters)
    return [int(number) for number in keep(list(filters), ROWS).column("message_id").to_pylist()]


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        (EqualTo(KEY, "a"), [0]),
        (Not(EqualTo(KEY, "a")), [1, 3, 4]),
        (EqualNullSafe(KEY, "a"), [0]),
        (Not(EqualNullSafe(KEY, "a")), [1, 2, 3, 4]),
        (In(KEY, ("a", "b")), [0, 3]),
        (Not(In(KEY, ("a", "b"))), [1, 4]),
        (IsNull(KEY), [2]),
        (IsNotNull(KEY), [0, 1, 3, 4]),
        (Not(IsNull(KEY)), [0, 1, 3, 4]),
        (StringStartsWith(KEY, "a"), [0, 1]),
        (Not(StringStartsWith(KEY, "a")), [3, 4]),
        (StringEndsWith(KEY, "b"), [1, 3]),
        (StringContains(KEY, "b"), [1, 3]),
        (GreaterThan(KEY, "b"), [4]),
        (GreaterThan(TIME, moment(2)), [3, 4]),
        (GreaterThanOrEqual(TIME, moment(2)), [2, 3, 4]),
        (LessThan(TIME, moment(2)), [0, 1]),
        (LessThanOrEqual(TIME, moment(2)), [0, 1, 2]),
        (Not(LessThan(TIME, moment(2))), [2, 3, 4]),
        (In(TIME, (moment(1), moment(9))), [1]),
        (LessThan(ATTEMPT, 3), [1, 2]),
        (Not(LessThan(ATTEMPT, 3)), [3, 4]),
        (IsNull(("attributes",)), [3]),
        (IsNotNull(("data",)), [0, 1, 2, 3, 4]),
    ],
)
def test_a_filter_keeps_what_sql_keeps(pushed: Filter, expected: list[int]) -> None:
    assert kept(pushed) == expected


def test_several_filters_must_all_pass() -> None:
    assert kept(IsNotNull(KEY), GreaterThan(TIME, moment(0)), LessThan(TIME, moment(4))) == [1, 3]


@pytest.mark.parametrize(
    "pushed",
    [
        EqualTo(("attributes",), {"k": "v"}),
        EqualTo(("data",), b"x"),
        EqualTo(("attributes", "k"), "v"),
        EqualTo(("other",), "v"),
        IsNull(("attributes", "k")),
        EqualTo(KEY, None),
        EqualNullSafe(KEY, None),
        In(KEY, ("a", None)),
        Not(In(KEY, ("a", None))),
        EqualTo(KEY, 1),
        EqualTo(ATTEMPT, True),
        EqualTo(ATTEMPT, 2**31),
        EqualTo(TIME, datetime.datetime(2026, 1, 1)),
        StringStartsWith(TIME, "2026"),
    ],
)
def test_what_is_not_sure_to_agree_with_spark_is_left_to_spark(pushed: Any) -> None:
    assert not is_supported(pushed)
