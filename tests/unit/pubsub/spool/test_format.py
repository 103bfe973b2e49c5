"""Spool objects as bytes: what is read back, what is refused, and what yesterday's code wrote."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SpoolError
from penstock.pubsub.spool.format import (
    BrokenObjectError,
    SpoolKey,
    decode_object,
    encode_object,
)
from tests.unit.pubsub.agent.test_reservoir import received

GOLDEN = Path(__file__).parents[3] / "golden" / "pubsub-spool-object-v1.arrow"
KEY = SpoolKey(42, 3)


def payload(count: int = 5) -> bytes:
    batches = [received(list(range(count))).rows, received([100]).rows]
    return encode_object("abc", KEY, batches)


def sealed(body: bytes) -> bytes:
    return body + len(body).to_bytes(8, "little") + zlib.crc32(body).to_bytes(8, "little")


def test_rows_survive() -> None:
    batches = decode_object("abc", KEY, payload())
    assert [i for batch in batches for i in batch.column("message_id").to_pylist()] == [
        *(str(number) for number in range(5)),
        "100",
    ]


def test_an_empty_object_is_one() -> None:
    assert decode_object("abc", KEY, encode_object("abc", KEY, [])) == []


def test_an_object_of_version_1_is_read() -> None:
    """Written by the first release that had a spool; every later one has to read it."""
    (batch,) = decode_object("0123456789abcdef", SpoolKey(7, 1), GOLDEN.read_bytes())
    assert batch.column("message_id").to_pylist() == ["10000000000000001", "10000000000000002"]
    assert batch.column("data").to_pylist() == [b"one", b"\x00\xff"]
    assert batch.column("attributes").to_pylist() == [[("kind", "order")], []]
    assert batch.column("ordering_key").to_pylist() == ["k", None]
    assert batch.column("delivery_attempt").to_pylist() == [None, 2]
    assert str(batch.column("publish_time")[0].as_py()) == "2026-11-15 06:30:00+00:00"


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1, -8, -16])
def test_a_part_of_an_object_is_broken(cut: int) -> None:
    with pytest.raises(BrokenObjectError):
        decode_object("abc", KEY, payload()[:cut])


def test_an_object_in_another_place_is_refused() -> None:
    with pytest.raises(SpoolError, match="SPOOL_FOREIGN"):
        decode_object("abc", SpoolKey(42, 4), payload())
    with pytest.raises(SpoolError, match="SPOOL_FOREIGN"):
        decode_object("other", KEY, payload())


def test_a_later_version_is_named() -> None:
    head, body = payload()[:-16].split(b"}\n", 1)
    newer = head.replace(b'"v": 1', b'"v": 2') + b"}\n" + body
    with pytest.raises(SpoolError, match="version 2"):
        decode_object("abc", KEY, sealed(newer))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"PENSTOCK-SPOOL\n",
        b"PENSTOCK-SPOOL\n{}\n",
        b"PENSTOCK-SPOOL\nnot json\n",
        b"PENSTOCK-SPOOL\n[1]\n",
        b"PENSTOCK-SPOOL\n" + json.dumps({"v": 1}).encode() + b"\nrest",
    ],
)
def test_what_is_whole_and_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(SpoolError):
        decode_object("abc", KEY, sealed(body))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_a_changed_byte_is_noticed(position: int, flip: int) -> None:
    damaged = bytearray(payload())
    damaged[position % len(damaged)] ^= flip
    with pytest.raises((BrokenObjectError, SpoolError)):
        decode_object("abc", KEY, bytes(damaged))


def test_names_sort_as_keys_do() -> None:
    keys = [SpoolKey(tick, index) for tick in (0, 9, 10, 12_345) for index in (0, 9, 10)]
    assert sorted(keys, key=lambda key: key.name) == sorted(keys) == keys
    assert [SpoolKey.parse(key.name) for key in keys] == keys


@pytest.mark.parametrize("name", ["", "spool.json", "1-2.arrow", "a-b.arrow", "000000000001.arrow"])
def test_other_names_are_not_ours(name: str) -> None:
    assert SpoolKey.parse(name) is None
