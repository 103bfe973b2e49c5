"""Offset tokens are a stored format: these texts must be read for ever."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.snowflake.sink.tokens import OffsetToken

tokens = st.builds(
    OffsetToken,
    st.integers(0, 10**12 - 1),
    st.integers(0, 10**12 - 1),
    st.integers(0, 2**32 - 1),
)


def test_the_stored_form_is_version_1() -> None:
    assert str(OffsetToken(57, 1200, 0xAB)) == "v1:000000000057:000000001200:000000ab"


@given(tokens)
def test_what_is_written_is_read(token: OffsetToken) -> None:
    assert OffsetToken.parse(str(token)) == token


@given(tokens, tokens)
def test_texts_order_as_numbers_do(first: OffsetToken, second: OffsetToken) -> None:
    assert (str(first) < str(second)) == (first < second)


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.integers(0, 9))
def test_the_checksum_does_not_depend_on_how_rows_are_cut(lines: list[bytes], cut: int) -> None:
    ends = [line + b"\n" for line in lines]
    whole = OffsetToken.begin(3).after(b"".join(ends), len(ends))
    head, tail = ends[:cut], ends[cut:]
    in_two = OffsetToken.begin(3).after(b"".join(head), len(head)).after(b"".join(tail), len(tail))
    assert whole == in_two
    assert whole.crc == zlib.crc32(b"".join(ends))


@pytest.mark.parametrize(
    "text",
    ["", "0", "v2:000000000057:000000001200:000000ab", "v1:57:1200:ab",
     "v1:000000000057:000000001200:000000AB", "v1:000000000057:000000001200:000000ab "],
)  # fmt: skip
def test_other_texts_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no offset token"):
        OffsetToken.parse(text)


def test_numbers_beyond_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="12 digits"):
        OffsetToken(10**12, 0, 0)
