"""Bytes that are not pgoutput: always the same clear error, never a crash, never silence."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from penstock.errors import WireError
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.pgoutput.messages import read_messages
from tests.support.pgoutput import PlainDecoder, Row, decode, plain_rows, to_batch
from tests.unit.postgres.pgoutput.test_golden import golden_messages

BEGIN = struct.pack(">cQqI", b"B", 100, 0, 7)
COMMIT = struct.pack(">cBQQq", b"C", 0, 100, 148, 0)
RELATION = (
    b"R"
    + struct.pack(">I", 5)
    + b"s\0t\0d"
    + struct.pack(">H", 1)
    + b"\1id\0\0\0\0\x19\xff\xff\xff\xff"
)
ROW = struct.pack(">HcI", 1, b"t", 2) + b"42"


def insert(row: bytes = ROW, oid: int = 5, tag: bytes = b"N") -> bytes:
    return b"I" + struct.pack(">I", oid) + tag + row


def wrapped(*messages: bytes) -> list[bytes]:
    return [BEGIN, RELATION, *messages, COMMIT]


def test_the_undamaged_is_read() -> None:
    assert [row.values for row in decode([to_batch(wrapped(insert()))])] == [("42",)]


@pytest.mark.parametrize(
    ("messages", "fact"),
    [
        ([b""], "a message is empty"),
        ([b"Z"], "unknown kind 'Z'"),
        ([b"S\0\0\0\1\1"], "unknown kind 'S'"),
        ([b"\xff"], r"unknown kind '\\xff'"),
        ([BEGIN[:-1]], "Begin message is not 21 bytes"),
        ([BEGIN, COMMIT + b"\0"], "Commit message is not 26 bytes"),
        ([BEGIN, BEGIN], "do not alternate"),
        ([COMMIT], "do not alternate"),
        ([RELATION, insert()], "outside of any transaction"),
        ([BEGIN, COMMIT, insert()], "outside of any transaction"),
        ([BEGIN, COMMIT.replace(b"\0d", b"\0e", 1)], "of another transaction"),
        ([BEGIN, insert(), COMMIT], "unknown table with oid 5"),
        ([BEGIN, insert(), RELATION, COMMIT], "unknown table with oid 5"),
        (wrapped(b"T" + struct.pack(">IBI", 1, 0, 6)), "unknown table with oid 6"),
        (wrapped(b"T" + struct.pack(">IBI", 2, 0, 5)), "not as long as its number of tables"),
        (wrapped(b"T\0"), "Truncate message ends too early"),
        (wrapped(b"I\0\0"), "shorter than any row"),
        (wrapped(insert(tag=b"K")), "a tuple that its kind does not have"),
        (wrapped(b"D" + insert()[1:]), "a tuple that its kind does not have"),
        (wrapped(insert(struct.pack(">H", 1))), "ends too early"),
        (wrapped(insert(struct.pack(">H", 2) + b"nn")), "does not have the 1 columns"),
        (wrapped(insert(struct.pack(">Hc", 1, b"t"))), "ends too early"),
        (wrapped(insert(ROW[:-1])), "longer than its message"),
        (wrapped(insert(struct.pack(">HcI", 1, b"t", 2**32 - 1) + b"42")), "longer than its"),
        (wrapped(insert(ROW + b"\0")), "longer than its row"),
        (wrapped(insert(struct.pack(">HcI", 1, b"b", 2) + b"42")), r"'b' \(binary"),
        (wrapped(insert(struct.pack(">Hc", 1, b"x"))), "unknown kind 'x'"),
        (wrapped(insert(struct.pack(">HcI", 1, b"t", 2) + b"\xc3\x28")), "not UTF-8"),
        (wrapped(insert(struct.pack(">HcI", 1, b"t", 1) + b"\xc3")), "not UTF-8"),
        (wrapped(b"U" + insert(tag=b"K")[1:]), "no new row after the old"),
        (wrapped(b"U" + insert(tag=b"K")[1:] + b"K" + ROW), "no new row after the old"),
        (wrapped(b"U" + insert(tag=b"K")[1:] + b"N"), "a row ends too early"),
        (wrapped(RELATION[:-1]), "Relation message ends too early"),
        (wrapped(RELATION + b"\0"), "Relation message is longer"),
        (wrapped(RELATION.replace(b"t\0d", b"t\0x")), "unknown replica identity 'x'"),
        (wrapped(RELATION.replace(b"s\0", b"\xff\0")), "not UTF-8"),
        (wrapped(b"Y\0\0\0\1a\0b"), "Type message ends too early"),
        (wrapped(b"O\0"), "Origin message ends too early"),
        (wrapped(b"M\0" + bytes(8) + b"p\0\0\0\0\x09x"), "logical message ends too early"),
    ],
)
def test_damage_is_named(messages: list[bytes], fact: str) -> None:
    with pytest.raises(WireError, match=fact) as raised:
        decode([to_batch(messages)])

    assert raised.value.code == "PGOUTPUT"


@pytest.mark.parametrize(
    "message",
    [b"O" + bytes(8) + b"here\0", b"Y\0\0\0\1a\0b\0", b"M\0" + bytes(8) + b"p\0\0\0\0\1x"],
)
def test_messages_without_rows_are_passed_over(message: bytes) -> None:
    assert len(decode([to_batch(wrapped(message, insert()))])) == 1


def test_two_texts_that_are_utf8_only_together_are_refused() -> None:
    halves = [insert(struct.pack(">HcI", 1, b"t", 1) + half) for half in (b"\xc3", b"\xa9")]

    with pytest.raises(WireError, match="not UTF-8"):
        decode([to_batch(wrapped(*halves))])


@pytest.mark.parametrize(
    "column",
    [pa.array([BEGIN, None]), pa.array(["B"]), pa.array([1])],
    ids=["a null", "text", "numbers"],
)
def test_a_column_of_another_kind_is_refused(column: pa.Array) -> None:
    with pytest.raises(WireError, match="the column 'data' is"):
        Decoder(0, 1).feed(pa.record_batch({"data": column}))


def test_large_binary_is_read_in_parts_of_two_gigabytes() -> None:
    messages = wrapped(*[insert()] * 50)
    batch = pa.record_batch({"data": pa.array(messages, pa.large_binary())})

    parts = list(read_messages(batch, largest=100))

    assert len(parts) > 5
    assert max(len(part.data) for part in parts) <= 100
    assert [
        bytes(part.data[a:b]) for part in parts for a, b in zip(part.starts, part.ends, strict=True)
    ] == messages
    assert decode([batch]) == decode([to_batch(messages)])


def mutate(chance: random.Random, messages: list[bytes]) -> list[bytes]:
    damaged = [bytearray(message) for message in messages]
    for _ in range(chance.choice((1, 1, 2, 8))):
        number = chance.randrange(len(damaged))
        message = damaged[number]
        at = chance.randrange(len(message) + 1)
        match chance.randrange(7):
            case 0 if at < len(message):
                message[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(message):
                message[at] = chance.choice(b"\0\1\x7f\x80\xffntubKON")
            case 2:
                message[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del message[at : at + chance.randrange(1, 9)]
            case 4:
                damaged.insert(chance.randrange(len(damaged)), bytearray(chance.choice(messages)))
            case 5 if len(damaged) > 1:
                del damaged[number]
            case _:
                damaged[number] = bytearray(chance.randbytes(chance.randrange(40)))
    return [bytes(message) for message in damaged]


def test_mutated_bytes_are_an_error_or_what_the_plain_decoder_reads() -> None:
    """3,000 mutations of a real capture; what still is pgoutput must not be read otherwise."""
    seed = random.randrange(2**32)
    print("seed", seed)  # noqa: T201 - pytest shows it on failure
    chance = random.Random(seed)
    messages = golden_messages()
    refused = 0
    for _ in range(3000):
        damaged = mutate(chance, messages)
        middle = chance.randrange(len(damaged) + 1)
        decoder = Decoder(0, 2**64 - 1)
        rows: list[Row] = []
        try:
            for half in (damaged[:middle], damaged[middle:]):
                for part in decoder.feed(to_batch(half)):
                    rows += plain_rows(part)
        except WireError:
            refused += 1
            continue
        plain = PlainDecoder(0, 2**64 - 1)
        for message in damaged:
            plain.feed(message)
        assert by_table(rows) == by_table(plain.rows)

    assert 500 < refused < 3000


def by_table(rows: list[Row]) -> dict[int, list[Row]]:
    tables: dict[int, list[Row]] = {}
    for row in rows:
        tables.setdefault(row.relation.oid, []).append(row)
    return tables
