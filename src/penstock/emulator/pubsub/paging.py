"""Lists in pages, as every List* method gives them; pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TypeVar

from penstock.emulator.pubsub.rpc import invalid

Item = TypeVar("Item")
DEFAULT_PAGE = 100
LARGEST_PAGE = 1000


def page(items: Sequence[Item], page_size: int, page_token: str) -> tuple[Sequence[Item], str]:
    """Cut one page out of a list; the token names where the next one begins."""
    if page_size < 0:
        raise invalid("page_size", f"{page_size} is negative")
    start = 0
    if page_token:
        try:
            start = int(base64.urlsafe_b64decode(page_token.encode()).decode())
        except ValueError:
            start = -1
        if start < 0:
            raise invalid("page_token", "is not a token of this method")
    end = start + min(page_size or DEFAULT_PAGE, LARGEST_PAGE)
    more = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(items) else ""
    return items[start:end], more
