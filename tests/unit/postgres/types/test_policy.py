from __future__ import annotations

import datetime
import traceback
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from penstock.errors import OptionError, RowError
from penstock.postgres.model import Kind, PgType
from penstock.postgres.types import ColumnType, TypePolicy, column_type
from tests.unit.postgres.types.support import Lab

FIRST_DATE, LAST_DATE = datetime.date.min, datetime.date.max
FIRST_TIME = datetime.datetime.min
LAST_TIME = datetime.datetime.max
UTC = ZoneInfo("UTC")


@dataclass(frozen=True)
class Misfit:
    """A value that Spark's type does not hold; what `clamp` makes of it (None: it fails)."""

    sql: str
    text: str
    clamped: Any = None
    unbounded_numeric: Literal["string", "decimal"] = "string"
    # What `null` makes of it.
    nulled: Any = None

    def policy(self, out_of_range: Literal["fail", "null", "clamp"]) -> TypePolicy:
        return TypePolicy(out_of_range=out_of_range, unbounded_numeric=self.unbounded_numeric)


def _temporal() -> list[Misfit]:
    early = ("-infinity", "4713-01-01 BC", "0001-12-31 BC")
    late = ("infinity", "10000-01-01", "294276-12-31")
    limits = {
        "date": (FIRST_DATE, LAST_DATE),
        "timestamp": (FIRST_TIME, LAST_TIME),
        "timestamptz": (FIRST_TIME.replace(tzinfo=UTC), LAST_TIME.replace(tzinfo=UTC)),
    }
    return [
        Misfit(sql, text, limit)
        for sql, (first, last) in limits.items()
        for texts, limit in ((early, first), (late, last))
        for text in texts
    ]


MISFITS = [
    *_temporal(),
    Misfit("date", "5874897-12-31", LAST_DATE),
    Misfit("date", "4714-11-24 BC", FIRST_DATE),
    Misfit("numeric(5,2)", "NaN"),
    Misfit("numeric(3,5)", "NaN"),
    Misfit("numeric(3,-2)", "NaN"),
    *(
        Misfit("numeric", text, unbounded_numeric="decimal")
        for text in ("NaN", "Infinity", "-Infinity", "1e20", "-1e20", "1e-19", "1e1000")
    ),
    Misfit("int4[]", "{{1,2},{3,4}}"),
    Misfit("text[]", '{{"{"},{"}"}}'),
    Misfit("date[]", "{infinity,NULL}", [LAST_DATE, None], nulled=[None, None]),
    Misfit("public.stamped", "(1,infinity)", {"a": 1, "d": LAST_DATE}, nulled={"a": 1, "d": None}),
]
each_misfit = pytest.mark.parametrize("misfit", MISFITS, ids=lambda m: f"{m.sql} {m.text}")


def columns(lab: Lab, column: ColumnType) -> list[pa.Array]:
    """What the stream gives, then what the snapshot gives."""
    streamed = column.from_text(lab.streamed_text(), "public.sample.v")
    return [streamed, column.from_snapshot(lab.snapshot(column), "public.sample.v")]


@pytest.fixture(scope="module", autouse=True)
def stamped(lab: Lab) -> None:
    lab.sql.execute("DROP TYPE IF EXISTS public.stamped")
    lab.sql.execute("CREATE TYPE public.stamped AS (a int, d date)")


@each_misfit
def test_a_value_that_does_not_fit_fails_by_default_and_is_not_in_the_message(
    lab: Lab, misfit: Misfit
) -> None:
    lab.fill(misfit.sql, [None, misfit.text])
    column = column_type(lab.type_of(), misfit.policy("fail"))
    texts, copied = lab.streamed_text(), lab.snapshot(column)

    with pytest.raises(RowError) as from_stream:
        column.from_text(texts, "public.sample.v")
    with pytest.raises(RowError) as from_snapshot:
        column.from_snapshot(copied, "public.sample.v")

    for error in (from_stream.value, from_snapshot.value):
        assert error.code == "VALUE_OUT_OF_RANGE"
        assert "'public.sample.v'" in str(error)
        assert "outOfRange" in str(error)
        shown = "".join(traceback.format_exception(error))
        assert texts[1].as_py() not in shown.replace("(or is infinity)", "").replace("is NaN", "")


@each_misfit
def test_a_value_that_does_not_fit_may_become_null(lab: Lab, misfit: Misfit) -> None:
    lab.fill(misfit.sql, [misfit.text, None, misfit.text])
    column = column_type(lab.type_of(), misfit.policy("null"))

    for values in columns(lab, column):
        assert values.to_pylist() == [misfit.nulled, None, misfit.nulled]
        assert values.type == column.arrow


@each_misfit
def test_a_value_that_does_not_fit_may_become_the_nearest_if_there_is_one(
    lab: Lab, misfit: Misfit
) -> None:
    lab.fill(misfit.sql, [misfit.text, None])
    column = column_type(lab.type_of(), misfit.policy("clamp"))

    if misfit.clamped is None:
        with pytest.raises(RowError, match="VALUE_OUT_OF_RANGE"):
            columns(lab, column)
        return
    for values in columns(lab, column):
        assert values.to_pylist() == [misfit.clamped, None]


def test_values_beside_a_misfit_are_kept(lab: Lab) -> None:
    lab.fill("timestamp", ["infinity", "2026-01-02 03:04:05.6", "0001-01-01 BC", "0001-01-01"])
    column = column_type(lab.type_of(), TypePolicy(out_of_range="null"))
    kept = datetime.datetime(2026, 1, 2, 3, 4, 5, 600_000)

    for values in columns(lab, column):
        assert values.to_pylist() == [None, kept, None, FIRST_TIME]


def test_arrays_beside_one_of_another_shape_are_kept(lab: Lab) -> None:
    lab.fill("int4[]", ["{1}", "{{1}}", "{}", None, "{2,3}"])
    column = column_type(lab.type_of(), TypePolicy(out_of_range="null"))

    for values in columns(lab, column):
        assert values.to_pylist() == [[1], None, [], None, [2, 3]]


def test_unbounded_numerics_may_be_decimals_and_are_never_rounded(lab: Lab) -> None:
    texts = ["1." + "0" * 40, "-0.5", "9" * 20 + "." + "9" * 18, "1e19", "1e-18", "0"]
    lab.fill("numeric", texts)
    column = column_type(lab.type_of(), TypePolicy(unbounded_numeric="decimal"))

    assert column.spark.simpleString() == "decimal(38,18)"
    for values in columns(lab, column):
        assert values.to_pylist() == [Decimal(text) for text in texts]


def test_declared_dimensions_make_nested_arrays(lab: Lab) -> None:
    lab.fill("text[][]", ['{{a,NULL},{"b,c","}"}}', "{}", None, "[5:5][2:3]={{x,y}}", "{{1},{2}}"])
    flat = lab.type_of()
    nested = replace(flat, inner=replace(flat))
    column = column_type(nested, TypePolicy())

    assert column.spark.simpleString() == "array<array<string>>"
    for values in columns(lab, column):
        assert values.to_pylist() == [
            [["a", None], ["b,c", "}"]],
            [],
            None,
            [["x", "y"]],
            [["1"], ["2"]],
        ]


def test_three_dimensions_are_read_and_two_are_not_three(lab: Lab) -> None:
    lab.fill("int4[]", ["{{{1,2},{3,4}},{{5,6},{7,8}}}", "{{1}}"])
    flat = lab.type_of()
    nested = replace(flat, inner=replace(flat, inner=flat))
    column = column_type(nested, TypePolicy(out_of_range="null"))

    for values in columns(lab, column):
        assert values.to_pylist() == [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]], None]


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (PgType(23, "int4"), "12secret"),
        (PgType(701, "float8"), "12secret"),
        (PgType(16, "bool"), "true"),
        (PgType(17, "bytea"), "secret"),
        (PgType(17, "bytea"), "\\xsecret!"),
        (PgType(1082, "date"), "13.01.2020"),
        (PgType(1114, "timestamp"), "2020secret"),
        (PgType(1700, "numeric", typmod=(5 << 16) + 2 + 4), "12secret"),
        (PgType(20_000, "c", Kind.COMPOSITE, fields=(("a", PgType(25, "text")),)), "(1,secret)"),
        (PgType(20_001, "hstore"), '"secret"'),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_text_of_another_type_is_an_error_without_the_text(type_: PgType, text: str) -> None:
    column = column_type(type_, TypePolicy(out_of_range="null"))

    with pytest.raises(RowError) as caught:
        column.from_text(pa.array([None, text]), "public.t.c")

    assert caught.value.code == "VALUE_UNREADABLE"
    assert text not in "".join(traceback.format_exception(caught.value))


def test_a_policy_with_an_unknown_word_is_refused() -> None:
    with pytest.raises(OptionError, match="fail, null, clamp"):
        TypePolicy(out_of_range="ignore")  # type: ignore[arg-type]
