"""The form of a spool's objects; pure.

An object holds the rows of one task of one batch as an Arrow stream, between a head that names its
version and its place and a tail that shows it is whole. Objects outlive versions of Penstock: what
is written today must be readable tomorrow, which `tests/golden` checks.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass

import pyarrow as pa

from penstock.errors import SpoolError
from penstock.pubsub.encoding import ROW_SCHEMA

VERSION = 1
_MAGIC = b"PENSTOCK-SPOOL\n"
_TAIL_BYTES = 16


@dataclass(frozen=True, order=True)
class SpoolKey:
    """The place of an object: a batch, and a task of it."""

    tick: int
    index: int

    @property
    def name(self) -> str:
        """The object's name; names sort as keys do."""
        return f"{self.tick:012d}-{self.index:05d}.arrow"

    @classmethod
    def parse(cls, name: str) -> SpoolKey | None:
        """Read a name; None if it is not one of ours."""
        tick, dash, index = name.removesuffix(".arrow").partition("-")
        if not (name.endswith(".arrow") and dash and tick.isdecimal() and index.isdecimal()):
            return None
        key = cls(int(tick), int(index))
        return key if key.name == name else None


class BrokenObjectError(Exception):
    """The bytes are not a whole object: their writer died in the middle, or they were damaged."""


def encode_object(spool: str, key: SpoolKey, batches: list[pa.RecordBatch]) -> bytes:
    """Give the bytes of an object."""
    head = {"v": VERSION, "spool": spool, **asdict(key)}
    sink = pa.BufferOutputStream()
    sink.write(_MAGIC + json.dumps(head).encode() + b"\n")
    with pa.ipc.new_stream(sink, ROW_SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = memoryview(sink.getvalue())
    tail = len(body).to_bytes(8, "little") + zlib.crc32(body).to_bytes(8, "little")
    return b"".join((body, tail))


def decode_object(spool: str, key: SpoolKey, payload: bytes) -> list[pa.RecordBatch]:
    """Read an object.

    Raises:
        BrokenObjectError: it is not whole.
        SpoolError: it is whole, and not what belongs here.
    """
    body = memoryview(payload)[:-_TAIL_BYTES]
    tail = payload[-_TAIL_BYTES:]
    if len(payload) < _TAIL_BYTES or int.from_bytes(tail[:8], "little") != len(body):
        raise BrokenObjectError("its end is missing")
    if int.from_bytes(tail[8:], "little") != zlib.crc32(body):
        raise BrokenObjectError("its bytes were changed")
    end = payload.find(b"\n", len(_MAGIC), len(body))
    if bytes(body[: len(_MAGIC)]) != _MAGIC or end < 0:
        raise _foreign(key, "is not an object of a spool")
    _check_head(payload[len(_MAGIC) : end], spool, key)
    try:
        with pa.ipc.open_stream(pa.py_buffer(body[end + 1 :])) as reader:
            if reader.schema.equals(ROW_SCHEMA):
                return list(reader)
            raise _foreign(key, f"has the columns {reader.schema.names}")
    except (pa.ArrowException, OSError) as exc:
        raise _foreign(key, f"holds no rows that can be read ({type(exc).__name__})") from None


def _check_head(text: bytes, spool: str, key: SpoolKey) -> None:
    try:
        head = json.loads(text)
    except ValueError:
        head = None
    version = head.get("v") if isinstance(head, dict) else None
    if type(version) is int and version > VERSION:
        raise SpoolError(
            "SPOOL_VERSION",
            f"Spool object '{key.name}'",
            f"has version {version}; this Penstock knows version {VERSION}",
            "Install the Penstock that wrote it, or a later one",
        )
    if head != {"v": VERSION, "spool": spool, **asdict(key)}:
        raise _foreign(key, "was written for another spool, batch or task")


def _foreign(key: SpoolKey, fact: str) -> SpoolError:
    return SpoolError(
        "SPOOL_FOREIGN",
        f"Spool object '{key.name}'",
        fact,
        "Give the query a spoolLocation of its own",
    )
