"""Wire bytes <-> Arrow for the server side; runs in the emulator's event loop, pure.

Messages are stored as the bytes they came in, and sent with message id and publish time appended:
in protobuf the last value of a field wins, so whatever a publisher put there is overridden. No
Python object is made per message.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message
from google.pubsub_v1.types.pubsub import PublishRequest

from penstock.emulator.pubsub.columns import Positions, lengths
from penstock.pubsub.protos import handler

# Real ack ids were seen at 188 to 194 characters. Ours are as long, so that a client that packs
# too many into one request meets the same limit here as in production.
ACK_ID_CHARS = 188
_ACK_TAIL = 40  # subscription uid (8 hex digits), position (16), the lease's token (16)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_UNHEX = np.full(256, 255, np.uint8)
_UNHEX[_HEX] = np.arange(16, dtype=np.uint8)

_ID_DIGITS = 17
# Tag and length of message_id (field 3), then its digits; tag and length of publish_time (field
# 4), then its seconds (tag, 5-byte varint) and nanos (tag, 5-byte varint).
_STAMP_BYTES = 2 + _ID_DIGITS + 2 + 12


class MalformedRequestError(ValueError):
    """The request's bytes are not the message that they should be."""


def decode(message_name: str, payload: bytes) -> dict[str, Any]:
    """Read one message's wire bytes into columns of one row, by field name."""
    try:
        batch = handler(message_name).list_to_record_batch([payload])
    except ValueError as exc:
        raise MalformedRequestError(str(exc)) from None
    return {name: batch.column(i) for i, name in enumerate(batch.schema.names)}


def parse(message_type: Any, payload: bytes) -> Any:
    """Read wire bytes into a protobuf message."""
    try:
        return message_type.FromString(payload)
    except message.DecodeError as exc:
        raise MalformedRequestError(str(exc)) from None


@dataclass(frozen=True)
class PublishedMessages:
    """The messages of one PublishRequest: their bytes, and what accepting them depends on."""

    topic: str
    messages: pa.BinaryArray
    heads: pa.StructArray
    payload: bytes

    @property
    def attributes(self) -> pa.MapArray:
        """The attributes of each message."""
        return self.heads.field("attributes")

    @property
    def ordering_keys(self) -> pa.StringArray:
        """The ordering key of each message, empty where there is none."""
        return self.heads.field("ordering_key")

    def begins_with_data(self) -> npt.NDArray[np.bool_]:
        """Tell which messages begin with a payload that is not empty, as serializers put it."""
        texts = self.messages
        starts = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts)]
        found: npt.NDArray[np.bool_] = lengths(texts) > 2
        content = np.frombuffer(texts.buffers()[2], np.uint8)
        at = starts[found]
        found[found] = (content[at] == 0x0A) & (content[at + 1] != 0)
        return found

    @functools.cached_property
    def data(self) -> pa.BinaryArray:
        """The payload of each message; a copy, so asked for only where it matters."""
        found = decode("PublishRequestData", self.payload)["messages"].flatten()
        return found.field("data")


def decode_publish(payload: bytes) -> PublishedMessages:
    """Split a PublishRequest into its messages without taking them apart."""
    # Only a check: ptars takes bytes that protobuf refuses, and one such message would make every
    # response that it is part of unreadable. Costs a tenth of what reading the columns costs.
    parse(PublishRequest.pb(), payload)
    raw = decode("RawPublishRequest", payload)
    heads = decode("PublishRequestHeads", payload)
    return PublishedMessages(
        topic=raw["topic"][0].as_py(),
        messages=raw["messages"].flatten(),
        heads=heads["messages"].flatten(),
        payload=payload,
    )


def decode_heads(messages: pa.BinaryArray) -> pa.StructArray:
    """Read attributes and ordering keys out of stored messages."""
    return handler("MessageHead").array_to_record_batch(messages).to_struct_array()


def message_ids(first_id: int, count: int) -> pa.StringArray:
    """Number messages; ids are decimal text of a fixed width."""
    ids = pa.array(np.arange(first_id, first_id + count, dtype=np.int64))
    return ids.cast(pa.string())


def _varints(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Encode many numbers in `width` bytes each: zero groups at the end are legal in a varint."""
    groups = (values[:, None] >> (7 * np.arange(width))) & 0x7F
    groups[:, :-1] |= 0x80
    encoded: npt.NDArray[np.uint8] = groups.astype(np.uint8)
    return encoded


def _stamps(ids: npt.NDArray[np.int64], times_us: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Encode message id and publish time as fields that can be appended to a PubsubMessage."""
    count = len(ids)
    tail = np.empty((count, _STAMP_BYTES), np.uint8)
    tail[:, :2] = (0x1A, _ID_DIGITS)
    digits = np.frombuffer(pa.array(ids).cast(pa.string()).buffers()[2], np.uint8)
    tail[:, 2 : 2 + _ID_DIGITS] = digits[: count * _ID_DIGITS].reshape(count, _ID_DIGITS)
    at = 2 + _ID_DIGITS
    tail[:, at : at + 3] = (0x22, 12, 0x08)
    tail[:, at + 3 : at + 8] = _varints(times_us // 1_000_000, 5)
    tail[:, at + 8] = 0x10
    tail[:, at + 9 : at + 14] = _varints(times_us % 1_000_000 * 1000, 5)
    return _fixed_width(tail)


def _fixed_width(rows: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    count, width = rows.shape
    fixed = pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(rows)])
    return fixed.cast(pa.binary())


def append_to_each(messages: pa.BinaryArray, fields: bytes | pa.BinaryArray) -> pa.BinaryArray:
    """Append encoded fields to messages: the same to all, or to each its own."""
    return pc.binary_join_element_wise(messages, fields, b"")


def encode_map_entries(attributes: dict[str, str]) -> bytes:
    """Encode attributes as fields that can be appended to a PubsubMessage."""
    parts = []
    for key, value in attributes.items():
        entry = b"".join(
            bytes([tag]) + length_prefix(text) + text
            for tag, text in ((0x0A, key.encode()), (0x12, value.encode()))
        )
        parts.append(b"\x12" + length_prefix(entry) + entry)
    return b"".join(parts)


def length_prefix(text: bytes) -> bytes:
    """Encode how long a field is, as a varint."""
    count = len(text)
    out = bytearray()
    while count > 0x7F:
        out.append((count & 0x7F) | 0x80)
        count >>= 7
    out.append(count)
    return bytes(out)


def encode_lists(message_name: str, fields: dict[str, pa.Array]) -> bytes:
    """Encode one message, all of whose fields are repeated; absent ones are empty."""
    converter = handler(message_name)
    schema = converter.schema()
    columns = []
    for field in schema:
        values = fields.get(field.name)
        if values is None:
            values = pa.array([], field.type.value_type)
        offsets = pa.py_buffer(np.array([0, len(values)], np.int32))
        columns.append(pa.Array.from_buffers(field.type, 1, [None, offsets], children=[values]))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    encoded: bytes = converter.record_batch_to_array(batch)[0].as_py()
    return encoded


def encode_publish_response(ids: pa.StringArray) -> bytes:
    """Encode a PublishResponse; all ids are of the same width, as `message_ids` makes them."""
    rows = np.empty((len(ids), 2 + _ID_DIGITS), np.uint8)
    rows[:, :2] = (0x0A, _ID_DIGITS)
    digits = np.frombuffer(ids.buffers()[2], np.uint8)
    rows[:, 2:] = digits[: len(ids) * _ID_DIGITS].reshape(len(ids), _ID_DIGITS)
    return rows.tobytes()


@dataclass(frozen=True)
class Delivery:
    """Messages to be sent, with what the server adds to each."""

    uid: int
    messages: pa.BinaryArray
    ids: npt.NDArray[np.int64]
    times_us: npt.NDArray[np.int64]
    positions: Positions
    attempts: npt.NDArray[Any]
    # What the ack ids name the lease by; the attempts if not given.
    tokens: npt.NDArray[Any] | None = None


def encode_received(delivery: Delivery, *, with_attempts: bool) -> bytes:
    """Encode the received_messages of a PullResponse or StreamingPullResponse.

    Every ReceivedMessage is a head of fixed width, the stored bytes, and a stamp of fixed width,
    so that joining three columns lays the whole response out in one buffer.
    """
    messages = delivery.messages
    sizes = lengths(messages).astype(np.int64) + _STAMP_BYTES
    width = 5 + 3 + ACK_ID_CHARS + (5 if with_attempts else 0) + 5
    head = np.empty((len(messages), width), np.uint8)
    head[:, 0] = 0x0A  # received_messages
    head[:, 1:5] = _varints(sizes + (width - 5), 4)
    head[:, 5:8] = (0x0A, 0x80 | (ACK_ID_CHARS & 0x7F), ACK_ID_CHARS >> 7)  # ack_id
    at = 8 + ACK_ID_CHARS
    tokens = delivery.attempts if delivery.tokens is None else delivery.tokens
    head[:, 8:at] = _ack_id_chars(delivery.uid, delivery.positions, tokens)
    if with_attempts:
        head[:, at] = 0x18  # delivery_attempt
        head[:, at + 1 : at + 5] = _varints(delivery.attempts.astype(np.int64), 4)
    head[:, -5] = 0x12  # message
    head[:, -4:] = _varints(sizes, 4)
    stamps = _stamps(delivery.ids, delivery.times_us)
    joined = pc.binary_join_element_wise(_fixed_width(head), messages, stamps, b"")
    encoded: bytes = joined.buffers()[2].to_pybytes()
    return encoded


def _ack_id_chars(
    uid: int, positions: Positions, tokens: npt.NDArray[Any]
) -> npt.NDArray[np.uint8]:
    count = len(positions)
    text = np.full((count, ACK_ID_CHARS), ord("P"), np.uint8)
    numbers = np.empty((count, _ACK_TAIL // 2), np.uint8)
    numbers[:, :4] = np.frombuffer(uid.to_bytes(4, "big"), np.uint8)
    numbers[:, 4:12] = positions.astype(">i8").view(np.uint8).reshape(count, 8)
    numbers[:, 12:] = tokens.astype(">i8").view(np.uint8).reshape(count, 8)
    text[:, -_ACK_TAIL::2] = _HEX[numbers >> 4]
    text[:, 1 - _ACK_TAIL :: 2] = _HEX[numbers & 15]
    return text


@dataclass(frozen=True)
class AckIds:
    """Ack ids taken apart; `known` tells which have our form and this subscription's uid."""

    known: npt.NDArray[np.bool_]
    positions: Positions
    tokens: npt.NDArray[np.int64]


def decode_ack_ids(uid: int, ack_ids: pa.StringArray) -> AckIds:
    """Take ack ids apart; what was never an ack id of this subscription comes out not known."""
    count = len(ack_ids)
    known = pc.equal(pc.binary_length(ack_ids), ACK_ID_CHARS).to_numpy(zero_copy_only=False)
    if not known.all():
        # Rare: a client sent something else among them. Give those a text of the right length.
        blank = pa.scalar("x" * ACK_ID_CHARS)
        ack_ids = pc.if_else(pa.array(known), ack_ids, blank)
    offset = ack_ids.offset
    starts = np.frombuffer(ack_ids.buffers()[1], np.int32)[offset : offset + count + 1]
    text = np.empty((0, ACK_ID_CHARS), np.uint8)
    if count:
        data = np.frombuffer(ack_ids.buffers()[2], np.uint8)
        text = data[starts[0] : starts[-1]].reshape(count, ACK_ID_CHARS)
    nibbles = _UNHEX[text[:, -_ACK_TAIL:]]
    known = known & (nibbles != 255).all(axis=1)
    numbers = (nibbles[:, ::2] << 4) | (nibbles[:, 1::2] & 15)
    numbers = np.ascontiguousarray(numbers)
    uids = np.ascontiguousarray(numbers[:, :4]).view(">u4")[:, 0]
    positions = np.ascontiguousarray(numbers[:, 4:12]).view(">i8")[:, 0].astype(np.int64)
    tokens = np.ascontiguousarray(numbers[:, 12:]).view(">i8")[:, 0].astype(np.int64)
    return AckIds(known & (uids == uid), positions, tokens)
