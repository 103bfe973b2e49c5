"""Names are read as SQL reads them, and quoted so that any of them works."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.snowflake.identifiers import TableName, quote, read_name, read_names, shown

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1,
                max_size=20)  # fmt: skip


@given(st.lists(names, min_size=1, max_size=3))
def test_quoted_names_are_read_as_they_are(parts: list[str]) -> None:
    assert read_names(".".join(map(quote, parts))) == tuple(parts)


@given(names)
def test_what_is_shown_is_read_back(name: str) -> None:
    assert read_name(shown(name)) == name


def test_bare_names_are_upper_case() -> None:
    assert read_names("shop.Sales.orders_2$") == ("SHOP", "SALES", "ORDERS_2$")


@pytest.mark.parametrize("text", ["", "a b", "1a", 'a"b', '"a', "a.", ".a", '""', "ü", "a" * 256])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name"):
        read_names(text)


def test_a_table_is_written_for_sql_and_for_people() -> None:
    table = TableName("SHOP", "my schema", 'o"d.d')
    assert table.sql == '"SHOP"."my schema"."o""d.d"'
    assert str(table) == 'SHOP."my schema"."o""d.d"'
