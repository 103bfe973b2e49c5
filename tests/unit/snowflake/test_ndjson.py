"""Arrow to JSON lines: equal to the slow reference for all values, and nothing turns into null."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.snowflake.ndjson import ColumnPlan, Encoded, Encoder, ValuePolicy
from penstock.snowflake.types import VARIANT, SnowType
from tests.unit.snowflake.reference import parsed, plain, same

TEXT = SnowType("VARCHAR", 16_777_216)
MICROS = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
moments = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), texts),
    (pa.binary(), st.binary(max_size=6)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (
        pa.decimal128(38, 10),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-10")),
    ),
    (pa.decimal128(5, 0), st.integers(-99999, 99999).map(Decimal)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), moments),
    (pa.timestamp("us", tz="UTC"), moments.map(lambda t: t.replace(tzinfo=dt.UTC))),
    (pa.time64("us"), st.times()),
]
KEYS = [leaf for leaf in LEAVES if leaf[0] in (pa.string(), pa.int64(), pa.date32(), pa.bool_())]


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


def nested(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    lists = inner.map(lambda kind: (pa.list_(kind[0]), st.lists(nullable(kind[1]), max_size=3)))
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda kinds: (
            pa.struct([(f'f"{i}', kind[0]) for i, kind in enumerate(kinds)]),
            st.fixed_dictionaries({f'f"{i}': nullable(k[1]) for i, k in enumerate(kinds)}),
        )
    )
    maps = st.tuples(st.sampled_from(KEYS), inner).map(
        lambda both: (
            pa.map_(both[0][0], both[1][0]),
            st.dictionaries(both[0][1], nullable(both[1][1]), max_size=3).map(
                lambda entries: list(entries.items())
            ),
        )
    )
    return st.one_of(lists, structs, maps)


kinds = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.integers(0, 5))
    columns = draw(st.lists(kinds, min_size=1, max_size=4))
    arrays = [
        pa.array(draw(st.lists(nullable(values), min_size=count, max_size=count)), kind)
        for kind, values in columns
    ]
    batch = pa.record_batch(arrays, names=[f"Zeile {i}" for i in range(len(arrays))])
    # Slices share buffers with what is before and after them.
    start = draw(st.integers(0, count))
    return batch.slice(start, draw(st.integers(0, count - start)))


def plan(name: str, kind: SnowType = TEXT, **more: bool) -> ColumnPlan:
    return ColumnPlan(name, kind, **more)


def encode(columns: dict[str, pa.Array], *plans: ColumnPlan, **policy: str) -> Encoded:
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    return Encoder(plans or [plan(name) for name in columns], ValuePolicy(**policy)).encode(batch)


def rows_of(encoded: Encoded) -> list[Any]:
    return [json.loads(line) for line in encoded.data.splitlines()]


@settings(max_examples=300)
@given(batches())
def test_every_value_is_as_the_slow_reference_writes_it(batch: pa.RecordBatch) -> None:
    encoded = Encoder([plan(field.name) for field in batch.schema]).encode(batch)
    lines = encoded.data.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == batch.num_rows
    assert encoded.flaws is None
    for line, row in zip(lines, batch.to_pylist(), strict=True):
        wanted = {field.name: plain(row[field.name], field.type) for field in batch.schema}
        assert same({name: parsed(line).get(name) for name in wanted}, wanted), line


@given(st.lists(nullable(texts | st.sampled_from(["[1,", "2]", "3 4", "", "1,2", "1] [2"]))))
def test_json_texts_are_sent_as_documents_or_refused_one_by_one(values: list[str | None]) -> None:
    encoded = encode({"j": pa.array(values, pa.string())}, plan("j", VARIANT, is_json=True))
    good = []
    for row, value in enumerate(values):
        try:
            good.append(None if value is None else json.loads(value, parse_constant=_refuse))
            is_good = True
        except ValueError:
            is_good = False
        assert is_good == (encoded.flaws is None or encoded.flaws[row] == 0)
    assert [row.get("j") for row in rows_of(encoded)] == good


def _refuse(name: str) -> None:
    raise ValueError(name)


def test_documents_with_line_ends_stay_on_one_line() -> None:
    document = '{\n "a": [1,\r\n 12345678901234567890.5]\n}'
    encoded = encode({"j": pa.array([document])}, plan("j", VARIANT, is_json=True))
    assert encoded.data.count(b"\n") == 1
    assert b"12345678901234567890.5" in encoded.data


def test_spark_variants_become_their_json() -> None:
    from pyspark.sql.types import VariantVal

    values = [VariantVal.parseJson('{"a": [1, null, "x"]}'), None, VariantVal.parseJson("null")]
    column = pa.array(
        [None if v is None else {"value": v.value, "metadata": v.metadata} for v in values],
        pa.struct([("value", pa.binary()), ("metadata", pa.binary())]),
    )
    encoded = encode({"v": column}, plan("v", VARIANT, is_variant=True))
    # A variant that is a JSON null is a value, and no variant is none.
    assert rows_of(encoded) == [{"v": {"a": [1, None, "x"]}}, {}, {"v": None}]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
class TestNonFinite:
    def test_is_kept_as_a_text_that_float_reads(self, bad: float) -> None:
        (first, second, third) = rows_of(encode({"f": pa.array([bad, 0.5, None])}))
        assert str(float(first["f"])) == str(bad)
        assert float(second["f"]) == 0.5
        assert third["f"] is None

    def test_is_refused_by_position(self, bad: float) -> None:
        encoded = encode({"f": pa.array([0.5, bad, None])}, non_finite="refuse")
        assert encoded.flaws is not None
        assert list(encoded.flaws) == [0, 1, 0]
        assert "NaN" in encoded.reasons[0].reason
        assert [row["f"] for row in rows_of(encoded)] == ["0.5", None]

    def test_is_null_only_when_told_so(self, bad: float) -> None:
        encoded = encode({"f": pa.array([0.5, bad])}, non_finite="null")
        assert encoded.flaws is None
        assert rows_of(encoded) == [{"f": 0.5}, {"f": None}]

    def test_inside_an_array_follows_the_same_rule(self, bad: float) -> None:
        column = pa.array([[0.5, bad], None, [1.0]])
        kept = rows_of(encode({"f": column}))
        assert str(float(kept[0]["f"][1])) == str(bad)
        assert rows_of(encode({"f": column}, non_finite="null"))[0] == {"f": [0.5, None]}
        refused = encode({"f": column}, non_finite="refuse")
        assert refused.flaws is not None
        assert list(refused.flaws) == [1, 0, 0]
        assert [row.get("f") for row in rows_of(refused)] == [None, [1.0]]


OUTSIDE = [
    (pa.date32(), -719_163, "0001-01-01"),
    (pa.date32(), 2_932_897, "9999-12-31"),
    (pa.timestamp("us"), -62_135_596_800_000_001, "0001-01-01 00:00:00.000000"),
    (pa.timestamp("us", tz="UTC"), 253_402_300_800_000_000, "9999-12-31 23:59:59.999999+00:00"),
]


@pytest.mark.parametrize(("kind", "number", "nearest"), OUTSIDE)
@pytest.mark.parametrize("is_nested", [False, True])
def test_times_outside_the_years_1_to_9999(
    kind: pa.DataType, number: int, nearest: str, is_nested: bool
) -> None:
    base = pa.int32() if pa.types.is_date(kind) else pa.int64()
    column = pa.array([0, number, None], base).cast(kind)
    if is_nested:
        column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), column)

    def value(row: dict[str, Any]) -> Any:
        return row["t"][0] if is_nested else row["t"]

    refused = encode({"t": column})
    assert refused.flaws is not None
    assert list(refused.flaws) == [0, 1, 0]
    assert len(rows_of(refused)) == 2
    assert value(rows_of(encode({"t": column}, out_of_range="null"))[1]) is None
    assert value(rows_of(encode({"t": column}, out_of_range="clamp"))[1]) == nearest


def test_nulls_too_long_texts_and_binaries_are_found_with_their_first_reason() -> None:
    encoded = encode(
        {
            "a": pa.array([1, None, 3, 4]),
            "s": pa.array(["äöü", "abcd", "ok", None]),
            "b": pa.array([b"12", b"12", b"123", b""]),
        },
        plan("a", SnowType("NUMBER", 19), is_nullable=False),
        plan("s", SnowType("VARCHAR", 3)),
        plan("b", SnowType("BINARY", 2)),
    )
    assert encoded.flaws is not None
    reasons = [encoded.reasons[code - 1] if code else None for code in encoded.flaws]
    assert [reason and reason.column for reason in reasons] == [None, "a", "b", None]
    assert "NOT NULL" in str(reasons[1])
    assert "more than 2 bytes" in str(reasons[2])
    assert [row["a"] for row in rows_of(encoded)] == [1, 4]


def test_a_decimal_in_a_variant_is_a_number_with_all_its_digits() -> None:
    column = pa.array([Decimal("12345678901234567890.123456789")], pa.decimal128(38, 9))
    encoded = encode({"d": column}, plan("d", VARIANT))
    assert encoded.data == b'{"d":12345678901234567890.123456789}\n'


def test_columns_of_ours_are_added_and_leave_with_their_rows() -> None:
    batch = pa.record_batch([pa.array([[1], None]), pa.array([1, None])], names=["l", "n"])
    encoder = Encoder([plan("l", SnowType("ARRAY")), plan("n", is_nullable=False)])
    encoded = encoder.encode(batch, pl.DataFrame({"_offset": ["7", "8"]}))
    assert rows_of(encoded) == [{"n": 1, "_offset": "7", "l": [1]}]


def test_names_of_columns_are_escaped() -> None:
    name = 'a "b"\\\n.ü'
    encoded = encode({"x": pa.array([[1]]), "y": pa.array([2])}, plan(name), plan(name + "2"))
    assert rows_of(encoded) == [{name + "2": 2, name: [1]}]


def test_intervals_are_iso_texts() -> None:
    column = pa.array([93784500000, -1, None], pa.duration("us"))
    assert [row["i"] for row in rows_of(encode({"i": column}))] == [
        "PT93784.500000S",
        "-PT0.000001S",
        None,
    ]
