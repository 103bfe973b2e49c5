"""The messages of one batch as positions in its bytes; runs in the task that reads a slot, pure.

Nothing is copied: every other module works on positions in the batch's own data buffer.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import WireError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

BEGIN, COMMIT, ORIGIN, RELATION, TYPE = b"BCORY"
INSERT, UPDATE, DELETE, TRUNCATE, LOGICAL_MESSAGE = b"IUDTM"

# Positions in one buffer must fit the 32-bit offsets of Arrow's string type.
LARGEST_BUFFER = 2**31 - 1

_KNOWN = np.zeros(256, np.bool_)
_KNOWN[list(b"BCORYIUDTM")] = True
IS_ROW = np.zeros(256, np.bool_)
IS_ROW[list(b"IUD")] = True
IS_CHANGE = np.zeros(256, np.bool_)
IS_CHANGE[list(b"IUDT")] = True


def malformed(fact: str, subject: str = "Changes of a replication slot") -> WireError:
    """Build the error for bytes that are not pgoutput. `fact` never holds a row's value."""
    return WireError(
        "PGOUTPUT",
        subject,
        fact,
        "Check that the slot was made for the plugin 'pgoutput' and that no proxy alters the "
        "traffic; if both hold, please report it with the version of PostgreSQL",
    )


@dataclass(frozen=True)
class Messages:
    """Consecutive messages: where each begins and ends in `data`, and its first byte."""

    # The same bytes twice: for numpy and for Arrow.
    data: Bytes
    buffer: pa.Buffer
    starts: Ints
    ends: Ints
    kinds: Bytes

    def __len__(self) -> int:
        return len(self.starts)

    def body(self, number: int) -> bytes:
        """Copy one message without its first byte; for the kinds that are rare."""
        return self.data[self.starts[number] + 1 : self.ends[number]].tobytes()


def read_messages(batch: pa.RecordBatch, largest: int = LARGEST_BUFFER) -> Iterator[Messages]:
    """Find the messages in the column `data` of a batch, in parts of at most so many bytes.

    Raises:
        WireError: a message is empty or of a kind that protocol version 1 does not have.
    """
    column = batch.column("data")
    width = {pa.binary(): np.int32, pa.large_binary(): np.int64}.get(column.type)
    if width is None or column.null_count:
        raise malformed(f"the column 'data' is {column.type} with {column.null_count} nulls")
    if not len(column):
        return
    _, offsets_buffer, buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, width)[column.offset :][: len(column) + 1]
    positions = offsets.astype(np.int64)
    first = 0
    while first < len(column):
        limit = int(positions[first]) + largest
        last = int(np.searchsorted(positions, limit, side="right")) - 1
        # One message is at most 1 GB, because PostgreSQL builds it in memory.
        last = max(last, first + 1)
        yield _part(positions[first : last + 1], buffer)
        first = last


def _part(positions: Ints, buffer: pa.Buffer | None) -> Messages:
    begin, end = int(positions[0]), int(positions[-1])
    if buffer is None or (positions[1:] <= positions[:-1]).any():
        raise malformed("a message is empty")
    part = buffer.slice(begin, end - begin)
    data = np.frombuffer(part, np.uint8)
    positions = positions - begin
    kinds = data[positions[:-1]]
    unknown = np.flatnonzero(~_KNOWN[kinds])
    if len(unknown):
        raise malformed(f"a message is of the unknown kind {chr(kinds[unknown[0]])!a}")
    return Messages(data, part, positions[:-1], positions[1:], kinds)


def read_numbers(data: Bytes, positions: Ints, size: int) -> Ints:
    """Gather big-endian unsigned numbers of `size` bytes; the positions must lie in `data`.

    Numbers of 8 bytes come as their two's complement.
    """
    # One view that has a number at every byte: a gather, then, costs one pass.
    windows: npt.NDArray[np.generic] = np.ndarray(
        (len(data) - size + 1,), f">u{size}", buffer=data.data, strides=(1,)
    )
    return windows[positions].astype(np.int64)
