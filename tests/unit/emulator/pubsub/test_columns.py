"""Columns over positions, against a plain dict."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.emulator.pubsub.columns import Column, lengths

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(0, 40)),
        st.tuples(st.just("trim"), st.integers(-3, 60)),
        st.tuples(st.just("open"), st.integers(0, 10)),
    ),
    max_size=30,
)


@given(first=st.integers(0, 100), steps=STEPS)
def test_column_agrees_with_a_dict(first: int, steps: list[tuple[str, int]]) -> None:
    column = Column(np.int64, first)
    model: dict[int, int] = {}
    low = end = first
    for number, (step, amount) in enumerate(steps):
        if step == "extend":
            values = np.arange(amount) + 1000 * number
            column.extend(amount, values)
            model.update(zip(range(end, end + amount), values.tolist(), strict=True))
            end += amount
        elif step == "trim":
            column.trim(low + amount)
            low = min(max(low + amount, low), end)
            model = {position: value for position, value in model.items() if position >= low}
        else:
            opened = max(0, low - amount)
            column.open_front(opened, -7)
            model.update(dict.fromkeys(range(opened, low), -7))
            low = opened
        assert (column.first, column.end, len(column)) == (low, end, end - low)
        assert column.window(low, end).tolist() == [model[p] for p in range(low, end)]
    positions = np.arange(low, end)[::3]
    column[positions] = 5
    assert column[positions].tolist() == [5] * len(positions)


def test_column_takes_one_value_for_all() -> None:
    column = Column(np.uint8, 7)
    column.extend(3, 2)
    assert column[np.array([7, 9])].tolist() == [2, 2]


def test_trimmed_column_gives_its_memory_back() -> None:
    column = Column(np.int64)
    column.extend(1_000_000, 1)
    column.trim(999_000)
    assert column._values.nbytes < 100_000
    assert column.window(999_000, 1_000_000).sum() == 1000


def test_growing_column_has_little_slack() -> None:
    column = Column(np.int64)
    for _ in range(1000):
        column.extend(100, 1)
    assert column._values.nbytes <= 8 * 100_000 * 1.3


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
@given(values=st.lists(st.text(max_size=5), max_size=10), start=st.integers(0, 10))
def test_lengths_follow_slices(kind: pa.DataType, values: list[str], start: int) -> None:
    array = pa.array([value.encode() for value in values], pa.binary()).cast(kind)
    expected = [len(value.encode()) for value in values[start:]]
    assert lengths(array[start:]).tolist() == expected
