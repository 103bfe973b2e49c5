"""Pages of a list: all items once, whatever the page size; wrong tokens are refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.emulator.pubsub.paging import DEFAULT_PAGE, LARGEST_PAGE, page
from penstock.emulator.pubsub.rpc import RpcError


@given(count=st.integers(0, 50), size=st.integers(1, 60))
def test_pages_have_every_item_once(count: int, size: int) -> None:
    items = list(range(count))
    seen: list[int] = []
    token = ""
    for _ in range(count // size + 1):
        found, token = page(items, size, token)
        assert len(found) <= size
        seen += found
        if not token:
            break
    assert seen == items
    assert token == ""


def test_page_size_has_a_default_and_a_bound() -> None:
    items = list(range(5000))
    assert len(page(items, 0, "")[0]) == DEFAULT_PAGE
    assert len(page(items, 10**6, "")[0]) == LARGEST_PAGE


def test_list_that_shrank_gives_an_empty_last_page() -> None:
    _, token = page(list(range(10)), 5, "")
    assert page([1, 2], 5, token) == ([], "")


@pytest.mark.parametrize(
    "token",
    ["x", "not a token", "\u00e9", base64.urlsafe_b64encode(b"-1").decode(), "////", "YQ=="],
)
def test_foreign_token_is_refused(token: str) -> None:
    with pytest.raises(RpcError, match="page_token"):
        page([1], 1, token)


def test_negative_page_size_is_refused() -> None:
    with pytest.raises(RpcError, match="page_size"):
        page([1], -1, "")
