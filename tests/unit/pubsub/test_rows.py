"""Rows of the sink: limits, routing, grouping, dead letters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.pubsub_v1 import types
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pubsub.deadletter import letters_of_flawed, letters_of_refused
from penstock.pubsub.encoding import MESSAGE_SCHEMA, encode_request
from penstock.pubsub.rows import FLAWS, Batch, group, has_ordering_keys, read_batch

TOPIC = "projects/p/topics/orders"
DEAD = "projects/p/topics/refused"
MAP = pa.map_(pa.string(), pa.string())


def one(**row: Any) -> pa.RecordBatch:
    return batch_of([row])


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    kinds = {"data": pa.binary(), "attributes": MAP, "ordering_key": pa.string()}
    is_text = isinstance(rows[0]["data"], str)
    columns = {
        name: pa.array(
            [row[name] for row in rows],
            pa.string() if is_text and name == "data" else kinds.get(name, pa.string()),
        )
        for name in rows[0]
    }
    return pa.record_batch(columns)


def flaw_of(batch: pa.RecordBatch) -> str:
    flaw = FLAWS[read_batch(batch, TOPIC, None).flaws[0]]
    return f"{flaw.column}: {flaw.fact}"


def not_utf8(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


FLAWED = {
    "empty": (one(data=b""), "data: the message has neither data nor attributes"),
    "null": (one(data=None, attributes=None), "data: the message"),
    "empty with empty map": (one(data=b"", attributes=[]), "data: the message has neither"),
    "over 10 MB": (one(data=b"x" * 10_000_000), "data: the message is over"),
    "101 attributes": (
        one(data=b"x", attributes=[(f"k{n}", "v") for n in range(101)]),
        "attributes: there are more than 100",
    ),
    "long key": (one(data=b"x", attributes=[("k" * 257, "v")]), "attributes: a key has more"),
    "long key in UTF-8": (one(data=b"", attributes=[("\u00e9" * 129, "")]), "attributes: a key h"),
    "long value": (one(data=b"x", attributes=[("k", "v" * 1025)]), "attributes: a value has more"),
    "goog": (one(data=b"x", attributes=[("a", ""), ("googk", "")]), "attributes: a key starts"),
    "null value": (one(data=b"x", attributes=[("k", None)]), "attributes: a value is null"),
    "long ordering key": (one(data=b"x", ordering_key="o" * 1025), "ordering_key: it has more"),
    "binary ordering key": (
        pa.record_batch({"data": [b"x"], "ordering_key": not_utf8(b"\xff")}),
        "ordering_key: it is not valid UTF-8",
    ),
    "binary attribute": (
        pa.record_batch(
            {
                "data": [b"x"],
                "attributes": pa.MapArray.from_arrays([0, 1], not_utf8(b"k"), not_utf8(b"\xff")),
            }
        ),
        "attributes: a key or a value is not valid UTF-8",
    ),
}


@pytest.mark.parametrize(("batch", "expected"), FLAWED.values(), ids=FLAWED.keys())
def test_a_row_over_a_limit_of_the_service_has_a_flaw(batch: pa.RecordBatch, expected: str) -> None:
    assert flaw_of(batch).startswith(expected)


FINE = {
    "data only": one(data=b"x"),
    "text": one(data="x"),
    "attributes only": one(data=None, attributes=[("k", "")]),
    "100 attributes": one(data=b"", attributes=[(f"k{n}", "v") for n in range(100)]),
    "longest key and value": one(data=b"", attributes=[("k" * 256, "v" * 1024)]),
    "longest ordering key": one(data=b"x", ordering_key="o" * 1024),
    "almost 10 MB": one(data=b"x" * 9_999_900),
    "null map": one(data=b"x", attributes=None),
    "large types": pa.record_batch({"data": pa.array(["x"], pa.large_string())}),
    "view of a text that is not UTF-8": pa.record_batch({"data": not_utf8(b"\xff\xfe")}),
}


@pytest.mark.parametrize("batch", FINE.values(), ids=FINE.keys())
def test_a_row_within_the_limits_has_no_flaw(batch: pa.RecordBatch) -> None:
    assert read_batch(batch, TOPIC, None).flaws.tolist() == [0]


def test_flaws_are_found_at_their_rows_also_in_a_slice() -> None:
    rows = [{"data": b"x", "attributes": [("k", "v" * length)]} for length in (1, 2000, 3, 2000)]
    sliced = batch_of(rows).slice(1)
    assert np.flatnonzero(read_batch(sliced, TOPIC, None).flaws).tolist() == [0, 2]


def test_data_of_type_string_is_published_as_its_utf8() -> None:
    batch = read_batch(one(data="gr\u00fcn"), TOPIC, None)
    assert batch.messages.column("data").to_pylist() == ["gr\u00fcn".encode()]


def test_topics_of_rows_are_completed_with_the_project_and_checked() -> None:
    names = ["orders", "projects/q/topics/other", None, "no", "projects/q/snapshots/x", "orders"]
    batch = read_batch(batch_of([{"data": b"x", "topic": name} for name in names]), None, "p")
    flaws = [FLAWS[code].fact[:10] for code in batch.flaws]
    assert flaws == ["", "", "it is null", "it is neit", "it is neit", ""]
    good = batch.select(batch.flaws == 0)
    groups = {rows.topic: rows.messages.num_rows for rows in group(good, is_ordered=False)}
    assert groups == {"projects/p/topics/orders": 2, "projects/q/topics/other": 1}


def test_a_topic_that_is_not_text_is_a_flaw() -> None:
    batch = pa.record_batch({"data": [b"x", b"y"], "topic": not_utf8(b"\xff\xff\xff", b"orders")})
    read = read_batch(batch, None, "p")
    assert [FLAWS[code].column for code in read.flaws] == ["topic", ""]
    letters = letters_of_flawed(read.select(read.flaws != 0), DEAD)
    assert "penstock_topic" not in dict(letters.messages.column("attributes")[0].as_py())


def test_the_option_wins_over_the_topic_column() -> None:
    batch = read_batch(one(data=b"x", topic="elsewhere"), TOPIC, None)
    assert [rows.topic for rows in group(batch, is_ordered=False)] == [TOPIC]


@given(
    keys=st.lists(st.sampled_from([None, "", "a", "b", "c"]), min_size=1, max_size=30),
    topics=st.lists(st.sampled_from(["one", "two"]), min_size=30, max_size=30),
)
@settings(deadline=None)
def test_grouping_keeps_every_row_once_and_in_order_within_its_key(
    keys: list[str | None], topics: list[str]
) -> None:
    rows = [
        {"data": str(number).encode(), "ordering_key": key, "topic": topic}
        for number, (key, topic) in enumerate(zip(keys, topics, strict=False))
    ]
    expected: dict[tuple[str, str | None], list[bytes]] = {}
    for row in rows:
        lane = (f"projects/p/topics/{row['topic']}", row["ordering_key"] or None)
        expected.setdefault(lane, []).append(row["data"])
    found = {
        (made.topic, made.ordering_key): made.messages.column("data").to_pylist()
        for made in group(read_batch(batch_of(rows), None, "p"), is_ordered=True)
    }
    assert found == expected


def test_without_ordering_all_rows_of_a_topic_share_requests() -> None:
    rows = [{"data": b"x", "ordering_key": None}] * 3
    batch = read_batch(batch_of(rows), TOPIC, None)
    assert [made.messages.num_rows for made in group(batch, is_ordered=False)] == [3]
    assert not has_ordering_keys(batch.messages)
    assert has_ordering_keys(read_batch(one(data=b"x", ordering_key="k"), TOPIC, None).messages)


def decode(letters: Any) -> list[Any]:
    request = types.PublishRequest.pb().FromString(encode_request(DEAD, letters.messages))
    assert request.topic == DEAD
    assert letters.topic == DEAD
    return list(request.messages)


def letters_for(batch: pa.RecordBatch) -> list[Any]:
    read = read_batch(batch, TOPIC, None)
    assert read.flaws.all()
    return decode(letters_of_flawed(read, DEAD))


def test_a_dead_letter_says_why_and_keeps_what_the_limits_allow() -> None:
    attributes = [("kept", "1"), ("googled", "2"), ("long", "v" * 2000), ("penstock_error", "mine")]
    (letter,) = letters_for(one(data=b"payload", attributes=attributes, ordering_key="key"))
    assert letter.data == b"payload"
    assert letter.ordering_key == ""
    assert dict(letter.attributes) == {
        "kept": "1",
        "penstock_error": f"attributes: {FLAWS[5].fact}",
        "penstock_topic": TOPIC,
        "penstock_ordering_key": "key",
    }


def test_a_dead_letter_of_too_large_a_message_is_cut_and_says_by_how_much() -> None:
    (letter,) = letters_for(one(data=b"x" * 10_000_001, attributes=[("k", "v")]))
    assert letter.data == b"x" * 9_000_000
    assert letter.attributes["penstock_truncated_bytes"] == "1000001"
    assert letter.attributes["k"] == "v"


def test_dead_letters_of_flawed_rows_have_no_flaw_themselves() -> None:
    rows = [
        {"data": b"x" * 10_000_001, "attributes": [(f"k{n}", "v" * 1024) for n in range(100)]},
        {"data": b"x", "attributes": [(f"{n:0>256}", "v" * 1024) for n in range(150)]},
        {"data": b"", "attributes": []},
        {"data": b"x", "attributes": [("k", None)]},
    ]
    read = read_batch(batch_of(rows), TOPIC, None)
    letters = letters_of_flawed(read, DEAD)
    assert letters.messages.schema == MESSAGE_SCHEMA
    assert not read_batch(letters.messages, DEAD, None).flaws.any()
    assert len(decode(letters)[1].attributes) <= 100


def test_the_services_reason_is_cut_to_an_attributes_length_at_a_character() -> None:
    messages = read_batch(one(data=b"x"), TOPIC, None).messages
    (letter,) = decode(letters_of_refused(messages, TOPIC, "\u00e9" * 2000, DEAD))
    reason = letter.attributes["penstock_error"]
    assert len(reason.encode()) <= 1024
    assert reason.startswith("refused: \u00e9")


def test_selecting_rows_keeps_topics_sizes_and_flaws_together() -> None:
    rows = [{"data": b"x" * n, "topic": f"topic{n}"} for n in range(4)]
    batch = read_batch(batch_of(rows), None, "p")
    kept: Batch = batch.select(np.array([False, True, False, True]))
    assert kept.messages.column("data").to_pylist() == [b"x", b"xxx"]
    assert kept.topics.to_pylist() == ["projects/p/topics/topic1", "projects/p/topics/topic3"]
    assert kept.sizes.tolist() == [batch.sizes[1], batch.sizes[3]]
