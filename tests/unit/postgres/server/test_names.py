"""Names, patterns and positions: what users and servers write, read and written back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.postgres.identifiers import (
    NamePart,
    parse_table_patterns,
    quote_identifier,
    quote_literal,
)
from penstock.postgres.lsn import format_lsn, parse_lsn
from tests.unit.postgres.server.conftest import Place

ODD_NAMES = [
    'We ird"na.me',
    "drop table x; --",
    "\u00fcn\u00efcode \u2603",
    "SELECT",
    "a'b\\c",
    "x" * 63,
    "%s",
]


@given(st.integers(0, 2**64 - 1))
def test_a_position_reads_back_as_itself(position: int) -> None:
    assert parse_lsn(format_lsn(position)) == position


def test_positions_are_written_as_the_server_does(place: Place) -> None:
    for position in (0, 1, 0xFFFFFFFF, 0x1_0000_0000, 0x16_B374_D848, 2**64 - 1):
        row = place.control.execute("SELECT %s::pg_lsn::text", [format_lsn(position)]).fetchone()
        assert row == (format_lsn(position),)


@pytest.mark.parametrize("text", ["", "0", "0/", "/0", "0/G", "0/123456789", " 0/1", "0/1\n"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="WAL position"):
        parse_lsn(text)


@pytest.mark.parametrize("position", [-1, 2**64])
def test_a_number_of_more_than_64_bits_is_no_position(position: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        format_lsn(position)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_quoted_name_is_taken_letter_for_letter(place: Place, name: str) -> None:
    place.execute(f"CREATE TABLE public.{quote_identifier(name)} (a int)")
    rows = place.control.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND oid > 16384")
    assert rows.fetchall() == [(name,)]


@pytest.mark.parametrize("name", ["", "x" * 64, "\u00fc" * 32, "a\0b"])
def test_a_name_that_the_server_would_change_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="NAME_INVALID"):
        quote_identifier(name)


@pytest.mark.parametrize("conforming", ["on", "off"])
@pytest.mark.parametrize("text", ["", "it's", "back\\slash", "\\'; DROP TABLE x; --", "\u2603"])
def test_a_quoted_text_is_that_text(place: Place, text: str, conforming: str) -> None:
    place.execute(
        f"SET standard_conforming_strings = {conforming}", "SET escape_string_warning = off"
    )
    row = place.control.execute(f"SELECT {quote_literal(text)}".encode()).fetchone()
    assert row == (text,)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=15))
def test_a_name_in_quotes_is_read_back(name: str) -> None:
    written = f"{quote_identifier(name)}.{quote_identifier(name)} , plain"
    quoted, plain = parse_table_patterns(written)
    assert (quoted.schema, quoted.name) == (NamePart(name), NamePart(name))
    assert str(plain) == "public.plain"


def test_plain_names_are_folded_and_quoted_ones_are_not() -> None:
    (pattern,) = parse_table_patterns('Sales."Order"')
    assert (pattern.schema.text, pattern.name.text) == ("sales", "Order")


def test_wildcards_stand_for_letters_except_in_quotes() -> None:
    wild, quoted = parse_table_patterns('s.order_?,s."a*"')
    assert wild.matches("s", "order_1")
    assert not wild.matches("s", "order_12")
    assert not wild.matches("t", "order_1")
    assert (wild.is_exact, quoted.is_exact) == (False, True)
    assert not quoted.matches("s", "ab")
    assert NamePart("a[b]*", is_pattern=True).matches("a[b]c")
    assert not NamePart("a.c", is_pattern=True).matches("abc")


@pytest.mark.parametrize("text", ["", "a.b.c", 'a."b', "a b", "a,,b", "a.", ".b", '""."a"', "a,"])
def test_what_is_no_list_of_names_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="TABLE_NAME"):
        parse_table_patterns(text)
