"""Wire bytes <-> Arrow, with the protobuf library as the judge."""

from __future__ import annotations

import datetime
import gc
import random
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from google.pubsub_v1 import types
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import WireError
from penstock.pubsub import encoding
from penstock.pubsub.encoding import (
    MESSAGE_SCHEMA,
    ROW_SCHEMA,
    SPARK_DDL,
    cut_points,
    decode_message_ids,
    decode_pull,
    decode_streaming_pull,
    encode_publish,
    encode_request,
    framed_sizes,
    topic_size,
)

StreamingPullResponse = types.StreamingPullResponse.pb()
PullResponse = types.PullResponse.pb()
PublishRequest = types.PublishRequest.pb()
PublishResponse = types.PublishResponse.pb()
TOPIC = "projects/p/topics/orders"

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ATTRIBUTES = st.dictionaries(TEXT, TEXT, max_size=5)
RECEIVED = st.fixed_dictionaries(
    {
        "ack_id": TEXT,
        "data": st.binary(max_size=200),
        "attributes": ATTRIBUTES,
        "message_id": TEXT,
        "seconds": st.integers(-62_135_596_800, 253_402_300_799),
        "micros": st.integers(0, 999_999),
        "ordering_key": TEXT,
        "delivery_attempt": st.integers(0, 2**31 - 1),
    }
)
PUBLISHED = st.fixed_dictionaries(
    {
        "data": st.none() | st.binary(max_size=300),
        "attributes": st.none() | st.dictionaries(TEXT, st.none() | TEXT, max_size=5),
        "ordering_key": st.none() | TEXT,
    }
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def fill(response: Any, rows: list[dict[str, Any]]) -> bytes:
    for row in rows:
        received = response.received_messages.add()
        received.ack_id = row["ack_id"]
        received.delivery_attempt = row["delivery_attempt"]
        received.message.data = row["data"]
        received.message.message_id = row["message_id"]
        received.message.ordering_key = row["ordering_key"]
        received.message.publish_time.seconds = row["seconds"]
        received.message.publish_time.nanos = row["micros"] * 1000
        for key, value in row["attributes"].items():
            received.message.attributes[key] = value
    return bytes(response.SerializeToString())


def micros(rows: pa.RecordBatch) -> list[int]:
    return rows.column("publish_time").view(pa.int64()).to_pylist()


def message_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{**row, "attributes": row["attributes"] and [*row["attributes"].items()]} for row in rows],
        schema=MESSAGE_SCHEMA,
    )


def assert_published(payloads: list[bytes], rows: list[dict[str, Any]]) -> None:
    requests = [PublishRequest.FromString(payload) for payload in payloads]
    assert {request.topic for request in requests} <= {TOPIC}
    messages = [message for request in requests for message in request.messages]
    assert [message.data for message in messages] == [row["data"] or b"" for row in rows]
    assert [dict(message.attributes) for message in messages] == [
        {key: value or "" for key, value in (row["attributes"] or {}).items()} for row in rows
    ]
    assert [message.ordering_key for message in messages] == [
        row["ordering_key"] or "" for row in rows
    ]
    assert not any(message.message_id or message.HasField("publish_time") for message in messages)


def test_row_schema_is_what_spark_makes_of_the_ddl() -> None:
    spark_schema = StructType(
        [
            StructField("message_id", StringType()),
            StructField("publish_time", TimestampType()),
            StructField("data", BinaryType()),
            StructField("attributes", MapType(StringType(), StringType())),
            StructField("ordering_key", StringType()),
            StructField("delivery_attempt", IntegerType()),
        ]
    )
    assert to_arrow_schema(spark_schema, timezone="UTC").equals(ROW_SCHEMA, check_metadata=True)
    declared = ", ".join(
        f"{field.name} {field.dataType.simpleString()}" for field in spark_schema.fields
    )
    assert declared == SPARK_DDL


@pytest.mark.parametrize(
    ("decode", "response"),
    [(decode_streaming_pull, StreamingPullResponse), (decode_pull, PullResponse)],
)
@given(rows=st.lists(RECEIVED, max_size=8))
@settings(deadline=None, max_examples=150)
def test_any_received_message_decodes_to_what_protobuf_reads(
    decode: Any, response: Any, rows: list[dict[str, Any]]
) -> None:
    received = decode(fill(response(), rows))
    assert received.rows.schema.equals(ROW_SCHEMA, check_metadata=True)
    received.rows.validate(full=True)
    assert received.ack_ids.to_pylist() == [row["ack_id"] for row in rows]
    columns = received.rows.select(
        ["message_id", "data", "attributes", "ordering_key", "delivery_attempt"]
    ).to_pydict()
    assert columns["message_id"] == [row["message_id"] for row in rows]
    assert columns["data"] == [row["data"] for row in rows]
    assert [dict(pairs) for pairs in columns["attributes"]] == [row["attributes"] for row in rows]
    assert columns["ordering_key"] == [row["ordering_key"] or None for row in rows]
    assert columns["delivery_attempt"] == [row["delivery_attempt"] or None for row in rows]
    assert micros(received.rows) == [row["seconds"] * 10**6 + row["micros"] for row in rows]


def test_time_below_a_microsecond_is_cut_off() -> None:
    response = PullResponse()
    response.received_messages.add().message.publish_time.FromNanoseconds(1_700_000_000_123_456_789)
    assert micros(decode_pull(response.SerializeToString()).rows) == [1_700_000_000_123_456]


def test_a_response_without_messages_has_no_rows_but_the_schema() -> None:
    received = decode_streaming_pull(b"")
    assert received.rows.num_rows == 0
    assert received.rows.schema.equals(ROW_SCHEMA)
    assert received.ack_ids.type == pa.string()


def test_a_received_message_without_content_is_a_row_of_nulls_with_its_ack_id() -> None:
    response = PullResponse()
    response.received_messages.add(ack_id="a")
    response.received_messages.add(ack_id="b").message.data = b"x"
    received = decode_pull(response.SerializeToString())
    assert received.ack_ids.to_pylist() == ["a", "b"]
    assert received.rows.column("message_id").to_pylist() == [None, ""]
    assert received.rows.column("data").to_pylist() == [None, b"x"]
    assert received.rows.column("attributes").to_pylist() == [None, []]


def test_a_payload_of_ten_megabytes_survives_both_ways() -> None:
    data = random.Random(1).randbytes(10_000_000)
    response = PullResponse()
    response.received_messages.add(ack_id="a").message.data = data
    assert decode_pull(response.SerializeToString()).rows.column("data")[0].as_py() == data
    row = {"data": data, "attributes": {"k": "v"}, "ordering_key": None}
    payloads = [made.payload for made in encode_publish(TOPIC, message_batch([row]), 10, 1000)]
    assert_published(payloads, [row])


def valid_response() -> bytes:
    rows = [
        {
            "ack_id": "ack",
            "data": b"payload",
            "attributes": {"key": "value"},
            "message_id": "17",
            "seconds": 1_700_000_000,
            "micros": 5,
            "ordering_key": "order",
            "delivery_attempt": 3,
        }
    ]
    return fill(StreamingPullResponse(), rows)


MALFORMED = {
    "cut off": valid_response()[:-1],
    "not UTF-8 in ack_id": valid_response().replace(b"ack", b"\xff\xfe\xfd"),
    "not UTF-8 in an attribute": valid_response().replace(b"value", b"\xff\xff\xff\xff\xff"),
    "not UTF-8 in ordering_key": valid_response().replace(b"order", b"\xff\xff\xff\xff\xff"),
    "length of 2**63": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "length of 2**31": b"\x0a\xff\xff\xff\xff\x07",
    "varint without end": b"\x0a" + b"\xff" * 11,
    "field number 0": b"\x00\x01",
    "wire type 7": b"\x0f\x01",
    "end of a group that never began": b"\x0c",
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bytes_are_a_wire_error(payload: bytes) -> None:
    with pytest.raises(WireError, match="PENSTOCK_WIRE"):
        decode_streaming_pull(payload)


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801])
def test_a_publish_time_outside_protobufs_range_is_a_wire_error(seconds: int) -> None:
    response = PullResponse()
    response.received_messages.add().message.publish_time.seconds = seconds
    with pytest.raises(WireError, match="years 1 to 9999"):
        decode_pull(response.SerializeToString())


@given(noise=st.binary(max_size=100), position=st.integers(0, 80), flipped=st.integers(1, 255))
@settings(deadline=None, max_examples=500)
def test_damaged_bytes_decode_or_are_a_wire_error(
    noise: bytes, position: int, flipped: int
) -> None:
    damaged = bytearray(valid_response())
    damaged[position % len(damaged)] ^= flipped
    for payload in (noise, bytes(damaged), bytes(damaged) + noise):
        try:
            received = decode_streaming_pull(payload)
        except WireError:
            continue
        received.rows.validate(full=True)
        assert received.rows.schema.equals(ROW_SCHEMA)


def test_a_panic_in_the_decoder_is_a_wire_error(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})

    class Broken:
        def list_to_record_batch(self, values: list[bytes]) -> None:
            raise panic("index out of bounds")

        record_batch_to_array = list_to_record_batch

    monkeypatch.setattr(encoding, "handler", lambda name: Broken())
    with pytest.raises(WireError):
        decode_pull(b"")
    with pytest.raises(WireError):
        encode_request(TOPIC, message_batch([]))


def test_an_interrupt_while_decoding_stays_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def list_to_record_batch(self, values: list[bytes]) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(encoding, "handler", lambda name: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        decode_pull(b"")


def test_memory_is_flat_over_ten_thousand_failing_decodes() -> None:
    # Large, and broken at the end: what was decoded up to there must be given back.
    broken = valid_response() * 200 + b"\x0a\xff"
    process = psutil.Process()

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(WireError):
                decode_streaming_pull(broken)

    fail(1000)
    gc.collect()
    before = process.memory_info().rss
    fail(10_000)
    gc.collect()
    assert process.memory_info().rss - before < 20_000_000


@given(
    rows=st.lists(PUBLISHED, min_size=1, max_size=12),
    max_rows=st.integers(1, 5),
    max_bytes=st.integers(1, 400),
    skipped=st.integers(0, 3),
)
@settings(deadline=None, max_examples=300)
def test_any_message_is_published_as_it_is_within_the_limits_of_a_request(
    rows: list[dict[str, Any]], max_rows: int, max_bytes: int, skipped: int
) -> None:
    # A slice: its arrays start somewhere inside their buffers.
    batch = message_batch(rows).slice(skipped)
    made = list(encode_publish(TOPIC, batch, max_rows, max_bytes))
    assert_published([request.payload for request in made], rows[skipped:])
    for request in made:
        assert 1 <= request.message_count <= max_rows
        assert len(request.payload) <= max_bytes or request.message_count == 1
    sizes = topic_size(TOPIC) * len(made) + int(framed_sizes(batch).sum())
    assert sum(len(request.payload) for request in made) == sizes


@given(rows=st.lists(PUBLISHED, max_size=12), start=st.integers(0, 12), length=st.integers(0, 12))
@settings(deadline=None)
def test_sizes_are_exact_for_every_row_of_a_slice(
    rows: list[dict[str, Any]], start: int, length: int
) -> None:
    batch = message_batch(rows).slice(start, length)
    sizes = framed_sizes(batch)
    for row in range(batch.num_rows):
        encoded = len(encode_request("", batch.slice(row, 1)))
        assert encoded == sizes[row]


def test_requests_are_filled_as_far_as_count_and_size_allow() -> None:
    rows = [{"data": b"x" * 100, "attributes": None, "ordering_key": None}] * 2500
    batch = message_batch(rows)
    counts = [made.message_count for made in encode_publish(TOPIC, batch, 1000, 10**6)]
    assert counts == [1000, 1000, 500]
    by_size = list(encode_publish(TOPIC, batch, 1000, 5000))
    assert all(5000 - 104 < len(made.payload) <= 5000 for made in by_size[:-1])


@given(
    sizes=st.lists(st.integers(1, 50), max_size=30),
    max_rows=st.integers(1, 6),
    max_bytes=st.integers(1, 100),
)
def test_cut_points_cover_everything_once_and_obey_both_limits(
    sizes: list[int], max_rows: int, max_bytes: int
) -> None:
    ends = cut_points(np.array(sizes, np.int64), max_rows, max_bytes)
    assert ends == sorted(set(ends))
    assert (ends[-1] if ends else 0) == len(sizes)
    for start, end in zip([0, *ends], ends, strict=False):
        assert end - start <= max_rows
        assert sum(sizes[start:end]) <= max_bytes or end - start == 1


def test_a_run_that_holds_something_already_is_closed_when_nothing_more_fits() -> None:
    sizes = np.array([10, 10], np.int64)
    assert cut_points(sizes, 5, 20, used_rows=1, used_bytes=15) == [0, 2]
    assert cut_points(sizes, 2, 100, used_rows=1, used_bytes=15) == [1, 2]


def test_message_ids_of_a_publish_response_are_read() -> None:
    payload = PublishResponse(message_ids=["1", "2"]).SerializeToString()
    assert decode_message_ids(payload).to_pylist() == ["1", "2"]
    assert decode_message_ids(b"").to_pylist() == []
    with pytest.raises(WireError):
        decode_message_ids(b"\x0a\x05x")
