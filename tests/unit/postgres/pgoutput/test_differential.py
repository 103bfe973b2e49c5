"""The decoder against the plain one: the same rows, whatever happened and however it is cut."""

# ruff: noqa: S608 - the statements are made of words in this file

from __future__ import annotations

import itertools
import struct

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.postgres.pgoutput import Relation, decoder
from tests.support.pgoutput import PlainDecoder, Row, Slot, decode, to_batch

TABLES = ("plain", "indexed", "whole", "keyless")
IDS = st.integers(1, 6)
VALUES = st.sampled_from(["'a'", "''", "NULL", "'é🚰'", "repeat('0123456789', 300)"])


def primary_key(relation: Relation) -> tuple[str, ...]:
    return ("id",) if any(column.name == "id" for column in relation.columns) else ()


def expected(messages: list[bytes], start_lsn: int = 0, end_lsn: int = 2**64 - 1) -> list[Row]:
    plain = PlainDecoder(start_lsn, end_lsn, primary_key)
    for message in messages:
        plain.feed(message)
    return sorted(plain.rows, key=lambda row: (row.lsn, row.ordinal, row.relation.oid))


def check(data: st.DataObject, messages: list[bytes]) -> None:
    everything = expected(messages)
    lsns = sorted({row.lsn for row in everything})
    edges = st.sampled_from([0, 2**64 - 1, *lsns, *(lsn + 1 for lsn in lsns)])
    start, end = sorted((data.draw(edges), data.draw(edges)))
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=6))
    points = [0, *sorted(cuts), len(messages)]
    batches = [to_batch(messages[a:b]) for a, b in itertools.pairwise(points)]
    # Slices of one batch share its buffer and begin in the middle of it.
    whole = to_batch(messages)
    slices = [whole.slice(a, b - a) for a, b in itertools.pairwise(points)]

    assert decode(batches, primary_key=primary_key) == everything
    ranged = decode(slices, start, end, primary_key=primary_key)
    assert ranged == expected(messages, start, end)


@st.composite
def statements(draw: st.DrawFn) -> str:
    table, key, other, value = draw(st.sampled_from(TABLES)), draw(IDS), draw(IDS), draw(VALUES)
    choices = [
        f"INSERT INTO {table} VALUES ({key}, {value}, {other}) ON CONFLICT DO NOTHING",
        f"UPDATE {table} SET n = {other} WHERE id = {key}",
        f"UPDATE {table} SET v = {value} WHERE id < {key}",
        f"UPDATE {table} SET id = {other} + 10 * id WHERE id = {key}",
        f"DELETE FROM {table} WHERE id = {key}",
    ]
    if table == "keyless":
        choices = choices[:1]
    choices += [f"TRUNCATE {table}, whole", f"ALTER TABLE {table} ADD c{key}{other} int DEFAULT 7"]
    return draw(st.sampled_from(choices))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), work=st.lists(st.lists(statements(), min_size=1, max_size=6), max_size=8))
def test_random_work_gives_the_rows_of_the_plain_decoder(
    slot: Slot, data: st.DataObject, work: list[list[str]]
) -> None:
    slot.close()
    slot.open()
    slot.run(
        "CREATE TABLE plain (id int PRIMARY KEY, v text, n int)",
        "CREATE TABLE indexed (id int NOT NULL UNIQUE, v text, n int)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id_key",
        "CREATE TABLE whole (id int PRIMARY KEY, v text, n int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE keyless (id int, v text, n int)",
    )
    # So that a text of 3,000 bytes is stored out of line and can be left out of an update.
    slot.run(*(f"ALTER TABLE {table} ALTER v SET STORAGE EXTERNAL" for table in TABLES))
    slot.create()
    for transaction in work:
        try:
            slot.transaction(*transaction)
        except slot.errors:
            hypothesis.note("a transaction was rolled back")

    check(data, slot.messages())


@st.composite
def tuples(draw: st.DrawFn, width: int) -> bytes:
    parts = [struct.pack(">H", width)]
    for _ in range(width):
        kind = draw(st.sampled_from("tttnu"))
        parts.append(kind.encode())
        if kind == "t":
            text = draw(st.text(max_size=3)).encode()
            parts += [struct.pack(">I", len(text)), text]
    return b"".join(parts)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Messages that keep to the protocol but hold what no server would send."""
    messages: list[bytes] = []
    widths: dict[int, int] = {}
    for transaction in range(draw(st.integers(0, 5))):
        lsn, time = 1000 * (transaction + 1), draw(st.integers(-(2**50), 2**50))
        messages.append(struct.pack(">cQqI", b"B", lsn, time, draw(st.integers(0, 2**32 - 1))))
        for _ in range(draw(st.integers(0, 8))):
            oid = draw(st.integers(1, 3))
            if oid not in widths or draw(st.integers(0, 9)) == 0:
                widths[oid] = draw(st.integers(0, 4))
                messages.append(draw(relations(oid, widths[oid])))
            messages.append(draw(changes(oid, widths)))
        messages.append(struct.pack(">cBQQq", b"C", 0, lsn, lsn + 48, time))
    return messages


@st.composite
def relations(draw: st.DrawFn, oid: int, width: int) -> bytes:
    identity = draw(st.sampled_from("dnfi"))
    message = struct.pack(">cI", b"R", oid) + f"s\0t{oid}\0{identity}".encode()
    message += struct.pack(">H", width)
    for name in ("id", "a", "b", "c")[:width]:
        message += struct.pack(">B", draw(st.integers(0, 1))) + name.encode() + b"\0"
        message += struct.pack(">Ii", 25, -1)
    return message


@st.composite
def changes(draw: st.DrawFn, oid: int, widths: dict[int, int]) -> bytes:
    width = widths[oid]
    head = struct.pack(">I", oid)
    match draw(st.sampled_from("IUUUDT")):
        case "I":
            return b"I" + head + b"N" + draw(tuples(width))
        case "D":
            return b"D" + head + draw(st.sampled_from([b"K", b"O"])) + draw(tuples(width))
        case "T":
            oids = draw(st.sets(st.sampled_from(sorted(widths)), min_size=1))
            return struct.pack(f">cIB{len(oids)}I", b"T", len(oids), 0, *oids)
    old = b""
    if draw(st.booleans()):
        old = draw(st.sampled_from([b"K", b"O"])) + draw(tuples(width))
    return b"U" + head + old + b"N" + draw(tuples(width))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), messages=streams(), most_rows=st.sampled_from([1, 2, 3, 8192]))
def test_anything_the_protocol_allows_gives_the_rows_of_the_plain_decoder(
    data: st.DataObject, messages: list[bytes], most_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "_MOST_ROWS", most_rows)
        check(data, messages)
