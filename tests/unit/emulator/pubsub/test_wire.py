"""Wire bytes against the official message classes: the same bytes mean the same."""

from __future__ import annotations

import contextlib
import datetime

import numpy as np
import pyarrow as pa
import pytest
from google.pubsub_v1 import types
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.emulator.pubsub import wire

TEXT = st.text(max_size=20)
MESSAGES = st.lists(
    st.builds(
        types.PubsubMessage,
        data=st.binary(max_size=50),
        attributes=st.dictionaries(TEXT, TEXT, max_size=3),
        ordering_key=TEXT,
        message_id=TEXT,
    ),
    min_size=1,
    max_size=6,
)
ACK_LISTS = ("ack_ids", "invalid_ack_ids", "unordered_ack_ids", "temporary_failed_ack_ids")


def encoded(request: types.PublishRequest) -> bytes:
    return bytes(types.PublishRequest.serialize(request))


@given(topic=TEXT, messages=MESSAGES)
def test_publish_request_is_split_as_the_api_reads_it(
    topic: str, messages: list[types.PubsubMessage]
) -> None:
    request = types.PublishRequest(topic=topic, messages=messages)
    found = wire.decode_publish(encoded(request))
    assert found.topic == topic
    parsed = [types.PubsubMessage.deserialize(text) for text in found.messages.to_pylist()]
    assert parsed == messages
    assert found.ordering_keys.to_pylist() == [message.ordering_key for message in messages]
    assert [dict(pairs) for pairs in found.attributes.to_pylist()] == [
        dict(message.attributes) for message in messages
    ]
    assert found.data.to_pylist() == [message.data for message in messages]
    has_data = [bool(message.data) for message in messages]
    assert (found.begins_with_data() <= np.array(has_data)).all()


@given(
    messages=MESSAGES,
    uid=st.integers(0, 2**32 - 1),
    first=st.integers(0, 2**40),
    attempts=st.integers(1, 2**27),
    seeks=st.integers(0, 2**20),
    time_us=st.integers(0, 2**52),
    with_attempts=st.booleans(),
)
def test_delivery_is_read_by_the_api(
    messages: list[types.PubsubMessage],
    uid: int,
    first: int,
    attempts: int,
    seeks: int,
    time_us: int,
    with_attempts: bool,
) -> None:
    count = len(messages)
    texts = wire.decode_publish(encoded(types.PublishRequest(messages=messages))).messages
    positions = np.arange(first, first + count)
    numbers = np.full(count, attempts)
    delivery = wire.Delivery(
        uid=uid,
        messages=texts,
        ids=np.arange(count) + 10**16,
        times_us=np.full(count, time_us),
        positions=positions,
        attempts=numbers,
        tokens=numbers + (seeks << 32),
    )
    response = wire.encode_received(delivery, with_attempts=with_attempts)
    received = types.PullResponse.deserialize(response).received_messages
    published = datetime.datetime.fromtimestamp(0, datetime.UTC)
    published += datetime.timedelta(microseconds=time_us)
    for number, (message, sent) in enumerate(zip(received, messages, strict=True)):
        assert message.delivery_attempt == (attempts if with_attempts else 0)
        assert message.message.message_id == str(10**16 + number)
        assert message.message.publish_time == published
        assert message.message.data == sent.data
        assert dict(message.message.attributes) == dict(sent.attributes)
        assert message.message.ordering_key == sent.ordering_key
        assert len(message.ack_id) == wire.ACK_ID_CHARS
    ids = pa.array([message.ack_id for message in received])
    taken_apart = wire.decode_ack_ids(uid, ids)
    assert taken_apart.known.all()
    assert taken_apart.positions.tolist() == positions.tolist()
    assert taken_apart.tokens.tolist() == [attempts + (seeks << 32)] * count
    assert not wire.decode_ack_ids((uid + 1) % 2**32, ids).known.any()
    # The same fields are those of a StreamingPullResponse.
    streamed = types.StreamingPullResponse.deserialize(response)
    assert list(streamed.received_messages) == list(received)


def ack_id(uid: int, position: int, token: int) -> str:
    return ("P" * 200 + f"{uid:08x}{position:016x}{token:016x}")[-wire.ACK_ID_CHARS :]


@given(
    st.lists(
        st.text(max_size=200)
        | st.text("0123456789abcdefP", min_size=188, max_size=188)
        | st.builds(ack_id, st.just(7), st.integers(0, 2**60), st.integers(0, 2**60)),
        min_size=1,
        max_size=8,
    )
)
def test_any_text_is_an_ack_id_or_is_not(texts: list[str]) -> None:
    found = wire.decode_ack_ids(7, pa.array(texts, pa.string()))
    for number, text in enumerate(texts):
        tail = text[-40:]
        good = len(text.encode()) == 188 and all(c in "0123456789abcdef" for c in tail)
        assert bool(found.known[number]) == (good and int(tail[:8], 16) == 7)
        if found.known[number]:
            number_of = int.from_bytes(bytes.fromhex(tail[8:24]), "big", signed=True)
            assert int(found.positions[number]) == number_of


@pytest.mark.parametrize("ack_ids", [["a", "b", "c"], []])
def test_slice_of_ack_ids_is_read_alone(ack_ids: list[str]) -> None:
    texts = [ack_id(1, n, 1) for n in range(5)]
    found = wire.decode_ack_ids(1, pa.array([*ack_ids, *texts])[len(ack_ids) + 1 :])
    assert found.positions.tolist() == [1, 2, 3, 4]


@given(lists=st.lists(st.lists(TEXT, max_size=4), min_size=4, max_size=4))
def test_confirmation_is_read_by_the_api(lists: list[list[str]]) -> None:
    fields = {n: pa.array(v, pa.string()) for n, v in zip(ACK_LISTS, lists, strict=True)}
    kind = types.StreamingPullResponse.AcknowledgeConfirmation
    read = kind.deserialize(wire.encode_lists("AcknowledgeConfirmation", fields))
    assert [list(getattr(read, name)) for name in ACK_LISTS] == lists


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_publish_response_is_read_by_the_api(count: int) -> None:
    response = wire.encode_publish_response(wire.message_ids(10**16, count))
    read = types.PublishResponse.deserialize(response)
    assert list(read.message_ids) == [str(10**16 + n) for n in range(count)]


@given(attributes=st.dictionaries(st.text(max_size=300), st.text(max_size=300), max_size=4))
def test_appended_attributes_are_read_by_the_api(attributes: dict[str, str]) -> None:
    stored = types.PubsubMessage.serialize(types.PubsubMessage(data=b"x", attributes={"own": "1"}))
    added = wire.encode_map_entries(attributes)
    (text,) = wire.append_to_each(pa.array([stored], pa.binary()), added).to_pylist()
    read = types.PubsubMessage.deserialize(text)
    assert dict(read.attributes) == {"own": "1", **attributes}
    each = wire.append_to_each(pa.array([stored, stored]), pa.array([b"", added], pa.binary()))
    assert each.to_pylist() == [stored, text]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2**21])
def test_length_prefix_is_a_varint(size: int) -> None:
    text = types.PubsubMessage.serialize(types.PubsubMessage(data=b"x" * size))
    if size:
        assert text == b"\x0a" + wire.length_prefix(b"x" * size) + b"x" * size


@given(payload=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    for name in ("AcknowledgeRequest", "ModifyAckDeadlineRequest", "StreamingPullRequest"):
        with contextlib.suppress(wire.MalformedRequestError):
            wire.decode(name, payload)
    try:
        found = wire.decode_publish(payload)
    except wire.MalformedRequestError:
        return
    assert len(found.messages) == len(found.heads) == len(found.data)
    found.begins_with_data()


def field(tag: bytes, text: bytes) -> bytes:
    return tag + bytes([len(text)]) + text


ENTRY = st.tuples(
    st.sampled_from([b"\x0a", b"\x12"]), st.sampled_from([b"", b"k", b"\xff", b"\xc3\xa9"])
)
ENTRIES = st.lists(ENTRY, max_size=3).map(lambda parts: b"".join(field(*part) for part in parts))
FIELD = (
    st.binary(max_size=5).map(lambda text: field(b"\x0a", text))
    | ENTRIES.map(lambda text: field(b"\x12", text))
    | st.tuples(
        st.sampled_from([b"\x1a", b"\x22", b"\x2a"]), st.sampled_from([b"", b"k", b"\xff"])
    ).map(lambda part: field(*part))
    | st.sampled_from([b"\xf8\x07\x01", b"\xfa\x07\x01x", b"\x08\x01", b"\x2d\x00\x00\x00\x00"])
    | st.binary(max_size=2)
)


@given(parts=st.lists(st.lists(FIELD, max_size=4).map(b"".join), min_size=1, max_size=3))
@settings(max_examples=500)
def test_message_that_the_api_refuses_is_refused(parts: list[bytes]) -> None:
    """What passed here and not there would poison a whole response."""
    payload = b"".join(field(b"\x12", part) for part in parts)
    try:
        found = wire.decode_publish(payload)
    except wire.MalformedRequestError:
        return
    read = types.PublishRequest.deserialize(payload)
    assert [dict(pairs) for pairs in found.attributes.to_pylist()] == [
        dict(message.attributes) for message in read.messages
    ]
    assert found.data.to_pylist() == [message.data for message in read.messages]
    assert found.ordering_keys.to_pylist() == [m.ordering_key for m in read.messages]
