"""Offset tokens: what of a batch a channel has taken; pure.

A token is stored by Snowflake with the rows it covers, and read when the channel is opened again.
Its fields have a fixed width, so that tokens order as text as they do as numbers. This is a stored
format: later versions read it.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Self

_FORM = re.compile(r"v1:(\d{12}):(\d{12}):([0-9a-f]{8})")
_MOST = 10**12 - 1


@dataclass(frozen=True, order=True, slots=True)
class OffsetToken:
    """Rows of a batch up to some number, and the checksum of their JSON lines."""

    batch: int
    rows: int
    # CRC-32 of the lines with their line ends, from the batch's first row on.
    crc: int

    def __post_init__(self) -> None:
        if not (0 <= self.batch <= _MOST and 0 <= self.rows <= _MOST):
            raise ValueError(f"batch {self.batch} or row {self.rows} has more than 12 digits")

    def __str__(self) -> str:
        """Write it as the service stores it."""
        return f"v1:{self.batch:012d}:{self.rows:012d}:{self.crc:08x}"

    @classmethod
    def begin(cls, batch: int) -> Self:
        """Give the token of no rows."""
        return cls(batch, 0, 0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a stored token.

        Raises:
            ValueError: it is none of ours, or of a later version.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no offset token of this version")
        return cls(int(match[1]), int(match[2]), int(match[3], 16))

    def after(self, lines: bytes, count: int) -> Self:
        """Give the token after so many more rows; `lines` are theirs, each with its line end."""
        return type(self)(self.batch, self.rows + count, zlib.crc32(lines, self.crc))
