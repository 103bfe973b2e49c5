"""Positions in the WAL, between PostgreSQL's spelling and a number; runs everywhere, pure."""

from __future__ import annotations

import re

_SPELLING = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_LARGEST = 2**64 - 1


def parse_lsn(text: str) -> int:
    """Read `16/B374D848` as a number.

    Raises:
        ValueError: it is not written like that.
    """
    match = _SPELLING.fullmatch(text)
    if match is None:
        raise ValueError(f"not a WAL position like 16/B374D848: {text!r}")
    return int(match.group(1), 16) << 32 | int(match.group(2), 16)


def format_lsn(position: int) -> str:
    """Write a number as PostgreSQL does.

    Raises:
        ValueError: it has not 64 bits.
    """
    if not 0 <= position <= _LARGEST:
        raise ValueError(f"not a WAL position of 64 bits: {position}")
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
