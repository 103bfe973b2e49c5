from __future__ import annotations

from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.postgres.model import PgType
from penstock.postgres.types import TypePolicy, column_type
from penstock.postgres.types.numeric import DecimalShape, decimal_shape


def typmod(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        ((10, 2), DecimalShape(10, 2)),
        ((38, 38), DecimalShape(38, 38)),
        ((1, 0), DecimalShape(1, 0)),
        ((3, -2), DecimalShape(5, 0)),
        ((30, -8), DecimalShape(38, 0)),
        ((30, -9), None),
        ((3, 5), DecimalShape(5, 5)),
        ((3, 39), None),
        ((39, 0), None),
        ((1000, 1000), None),
        ((1000, -1000), None),
    ],
)
def test_the_smallest_decimal_that_holds_all_values(
    declared: tuple[int, int], shape: DecimalShape | None
) -> None:
    assert decimal_shape(typmod(*declared)) == shape


def test_without_a_modifier_there_is_no_decimal() -> None:
    assert decimal_shape(-1) is None


@given(
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
    st.lists(
        st.from_regex(r"-?(0|[1-9][0-9]{0,60})(\.[0-9]{1,60})?", fullmatch=True)
        | st.sampled_from(["NaN", "Infinity", "-Infinity", "1" + "0" * 1000]),
        min_size=1,
    ),
)
def test_digits_beyond_the_decimal_become_null_and_never_another_number(
    shape: tuple[int, int], texts: list[str]
) -> None:
    precision, scale = shape
    type_ = PgType(1700, "numeric", typmod=typmod(precision, scale))
    column = column_type(type_, TypePolicy(out_of_range="null"))

    read = column.from_text(pa.array(texts)).to_pylist()

    assert read == [_fitting(text, precision, scale) for text in texts]


def _fitting(text: str, precision: int, scale: int) -> Decimal | None:
    value = Decimal(text)
    with localcontext() as context:
        context.prec = 2000
        if not value.is_finite() or abs(value) >= Decimal(10) ** (precision - scale):
            return None
        scaled = value.scaleb(scale)
        return value if scaled == scaled.to_integral_value() else None
