from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.postgres.model import PgType
from penstock.postgres.types import TypePolicy, column_type
from tests.unit.postgres.types.cases import array_literal
from tests.unit.postgres.types.support import Lab

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
# Syntax is where parsers fail, so it is frequent.
SYNTAX = st.text('{}(),;"\\=> NULnul\n', max_size=12)
ELEMENT = st.none() | TEXT | SYNTAX
few = settings(max_examples=25)


def both_ways(lab: Lab, sql_type: str, inputs: list[str | None]) -> tuple[pa.Array, pa.Array]:
    lab.fill(sql_type, inputs)
    column = column_type(lab.type_of(), TypePolicy())
    streamed = column.from_text(lab.streamed_text())
    return streamed, column.from_snapshot(lab.snapshot(column))


def quoted(element: str | None) -> str:
    return "NULL" if element is None else array_literal([element])[1:-1]


@few
@given(data=st.data(), precision=st.integers(1, 38))
def test_any_decimal_arrives_as_it_is(lab: Lab, data: st.DataObject, precision: int) -> None:
    scale = data.draw(st.integers(0, precision))
    limit = 10**precision - 1
    numbers = data.draw(st.lists(st.integers(-limit, limit), max_size=30))
    sign_digits = [(int(n < 0), tuple(map(int, str(abs(n)))), -scale) for n in numbers]
    decimals = [Decimal(parts) for parts in sign_digits]

    streamed, copied = both_ways(lab, f"numeric({precision},{scale})", [*map(str, decimals)])

    assert streamed.type == pa.decimal128(precision, scale)
    assert streamed.to_pylist() == copied.to_pylist() == decimals


@few
@given(st.lists(st.none() | st.datetimes(), max_size=30))
def test_any_timestamp_of_sparks_years_arrives_as_it_is(
    lab: Lab, times: list[datetime.datetime | None]
) -> None:
    texts = [None if time is None else time.isoformat() for time in times]

    for sql_type, zone in (("timestamp", ""), ("timestamptz", "+00")):
        inputs = [None if text is None else text + zone for text in texts]
        streamed, copied = both_ways(lab, sql_type, inputs)
        arrived = [t and t.replace(tzinfo=None) for t in streamed.to_pylist()]
        assert arrived == times
        assert copied.equals(streamed)


@few
@given(st.lists(st.none() | st.dates(), max_size=30))
def test_any_date_arrives_as_it_is(lab: Lab, dates: list[datetime.date | None]) -> None:
    streamed, copied = both_ways(lab, "date", [d and d.isoformat() for d in dates])

    assert streamed.to_pylist() == copied.to_pylist() == dates


@few
@given(st.lists(st.none() | st.binary(max_size=40), max_size=30))
def test_any_bytes_arrive_as_they_are(lab: Lab, values: list[bytes | None]) -> None:
    inputs = [None if value is None else "\\x" + value.hex() for value in values]
    streamed, copied = both_ways(lab, "bytea", inputs)

    assert streamed.to_pylist() == copied.to_pylist() == values


@few
@given(st.lists(st.floats(), max_size=30))
def test_any_float_arrives_as_it_is(lab: Lab, values: list[float]) -> None:
    streamed, copied = both_ways(lab, "float8", [repr(value) for value in values])

    assert [*map(repr, streamed.to_pylist())] == [*map(repr, values)]
    assert [*map(repr, copied.to_pylist())] == [*map(repr, values)]


@few
@given(st.lists(st.none() | st.lists(ELEMENT, max_size=6), max_size=20))
def test_any_array_of_text_arrives_as_it_is(
    lab: Lab, arrays: list[list[str | None] | None]
) -> None:
    inputs = [
        None if array is None else "{" + ",".join(map(quoted, array)) + "}" for array in arrays
    ]
    streamed, copied = both_ways(lab, "text[]", inputs)

    assert streamed.to_pylist() == copied.to_pylist() == arrays


@few
@given(st.lists(st.none() | st.tuples(st.none() | st.integers(0, 9), ELEMENT), max_size=20))
def test_any_composite_arrives_as_it_is(
    lab: Lab, rows: list[tuple[int | None, str | None] | None]
) -> None:
    inputs = [None if row is None else _row_text(*row) for row in rows]
    streamed, copied = both_ways(lab, "public.pair", inputs)

    expected = [row and {"a": row[0], "b c": row[1]} for row in rows]
    assert streamed.to_pylist() == copied.to_pylist() == expected


def _row_text(number: int | None, text: str | None) -> str:
    first = "" if number is None else str(number)
    second = "" if text is None else text.replace("\\", "\\\\").replace('"', '""')
    return f"({first},{second})" if text is None else f'({first},"{second}")'


@few
@given(st.lists(st.none() | st.lists(st.lists(ELEMENT, min_size=2, max_size=2)), max_size=10))
def test_any_matrix_arrives_as_it_is(
    lab: Lab, matrices: list[list[list[str | None]] | None]
) -> None:
    lab.fill("text[]", [None if m is None else _matrix_text(m) for m in matrices])
    flat = lab.type_of()
    column = column_type(PgType(flat.oid, flat.name, flat.kind, -1, flat), TypePolicy())

    streamed = column.from_text(lab.streamed_text())

    assert streamed.to_pylist() == matrices
    assert column.from_snapshot(lab.snapshot(column)).equals(streamed)


def _matrix_text(matrix: list[list[str | None]]) -> str:
    return "{" + ",".join("{" + ",".join(map(quoted, line)) + "}" for line in matrix) + "}"


@given(st.lists(st.none() | st.dictionaries(TEXT | SYNTAX, ELEMENT, max_size=5), max_size=20))
def test_any_hstore_arrives_as_it_is(maps: list[dict[str, str | None] | None]) -> None:
    """The extension is not in the wheel: the text is written here as hstore_out writes it."""
    column = column_type(PgType(20_000, "hstore"), TypePolicy())
    texts = [None if entries is None else _hstore_text(entries) for entries in maps]

    read = column.from_text(pa.array(texts, pa.string()))

    assert read.type == column.arrow
    assert [entries if entries is None else dict(entries) for entries in read.to_pylist()] == maps


def _hstore_text(entries: dict[str, str | None]) -> str:
    return ", ".join(f"{quoted(key)}=>{quoted(value)}" for key, value in entries.items())


@given(st.lists(st.none() | TEXT))
def test_text_may_come_in_any_form_that_arrow_has_for_it(texts: list[str | None]) -> None:
    column = column_type(PgType(25, "text"), TypePolicy())

    for type_ in (pa.string(), pa.string_view(), pa.large_string()):
        read = column.from_text(pa.array(texts, type_))
        assert read.type == pa.string()
        assert read.to_pylist() == texts
