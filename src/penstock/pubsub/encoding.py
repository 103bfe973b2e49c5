"""Between Pub/Sub's wire format and Arrow, both ways; runs in workers, pure.

Whole responses become one RecordBatch and whole batches become requests: no Python runs per
message. Never does I/O. Whatever is wrong with the bytes is a `WireError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import WireError
from penstock.pubsub.protos import handler

SPARK_DDL = (
    "message_id string, publish_time timestamp, data binary, attributes map<string,string>, "
    "ordering_key string, delivery_attempt int"
)
# The types that Spark derives from SPARK_DDL; it refuses a batch with any others.
ROW_SCHEMA = pa.schema(
    [
        pa.field("message_id", pa.string()),
        pa.field("publish_time", pa.timestamp("us", tz="UTC")),
        pa.field("data", pa.binary()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("ordering_key", pa.string()),
        pa.field("delivery_attempt", pa.int32()),
    ]
)
# What a publisher may set; the service gives each message its id and time.
MESSAGE_SCHEMA = pa.schema(
    [ROW_SCHEMA.field(name) for name in ("data", "attributes", "ordering_key")]
)

Ints = npt.NDArray[np.int64]

# The range of google.protobuf.Timestamp: years 1 to 9999.
_FIRST_MICROS = -62_135_596_800_000_000
_LAST_MICROS = 253_402_300_799_999_999


@dataclass(frozen=True)
class Received:
    """Messages of one response: rows for Spark and, in the same order, their ack ids."""

    rows: pa.RecordBatch
    ack_ids: pa.StringArray


def decode_streaming_pull(payload: bytes) -> Received:
    """Decode a StreamingPullResponse.

    Raises:
        WireError: the bytes are not one.
    """
    return _decode_received("StreamingPullResponse", payload)


def decode_pull(payload: bytes) -> Received:
    """Decode a PullResponse.

    Raises:
        WireError: the bytes are not one.
    """
    return _decode_received("PullResponse", payload)


def decode_message_ids(payload: bytes) -> pa.StringArray:
    """Decode the message ids of a PublishResponse.

    Raises:
        WireError: the bytes are not one.
    """
    return parse("PublishResponse", payload).column("message_ids").flatten()


def parse(message_name: str, payload: bytes) -> pa.RecordBatch:
    """Decode one message of the given kind into a batch of one row.

    Raises:
        WireError: the bytes are not such a message.
    """
    try:
        return handler(message_name).list_to_record_batch([payload])
    except (ValueError, pa.ArrowException) as exc:
        raise _wire_error(message_name, payload, str(exc)) from exc
    except BaseException as exc:
        raise _panic_or_itself(exc, message_name, payload) from exc


def _panic_or_itself(exc: BaseException, message_name: str, payload: bytes) -> BaseException:
    # A panic inside ptars surfaces as a BaseException of a class that cannot be imported.
    if type(exc).__name__ != "PanicException":
        return exc
    return _wire_error(message_name, payload, "the decoder gave up on them")


def _wire_error(message_name: str, payload: bytes, fact: str) -> WireError:
    return WireError(
        "WIRE",
        f"{message_name} of {len(payload)} bytes",
        f"the bytes are not valid: {fact}",
        "Check that the endpoint is Pub/Sub and that no proxy alters the traffic",
    )


def _decode_received(message_name: str, payload: bytes) -> Received:
    # flatten() rather than field(): it carries a missing parent's nulls and slices to the child.
    received = parse(message_name, payload).column("received_messages").flatten()
    ack_ids, messages, attempts = received.flatten()
    data, attributes, message_ids, publish_times, keys = messages.flatten()
    _check_times(publish_times, message_name, payload)
    columns = [
        message_ids,
        publish_times,
        data,
        _spark_map(attributes),
        _null_where(keys, pc.equal(pc.binary_length(keys), 0)),
        _null_where(attempts, pc.equal(attempts, 0)),
    ]
    return Received(pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), ack_ids)


def _check_times(times: pa.Array, message_name: str, payload: bytes) -> None:
    extremes = pc.min_max(times.view(pa.int64()))
    first, last = extremes["min"].as_py(), extremes["max"].as_py()
    if first is not None and (first < _FIRST_MICROS or last > _LAST_MICROS):
        raise _wire_error(message_name, payload, "a publish_time is outside the years 1 to 9999")


def _null_where(values: pa.Array, mask: pa.Array) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def _spark_map(attributes: pa.MapArray) -> pa.MapArray:
    # ptars declares map values as never null, Spark as nullable: the same buffers, another type.
    return attributes.cast(ROW_SCHEMA.field("attributes").type)


@dataclass(frozen=True)
class PublishPayload:
    """One encoded PublishRequest and how many messages it carries."""

    payload: bytes
    message_count: int


def encode_publish(
    topic: str, messages: pa.RecordBatch, max_rows: int, max_bytes: int
) -> Iterator[PublishPayload]:
    """Encode a batch of MESSAGE_SCHEMA as requests of at most so many messages and bytes.

    A message that alone exceeds `max_bytes` makes a request of its own.
    """
    start = 0
    for end in cut_points(framed_sizes(messages), max_rows, max_bytes - topic_size(topic)):
        yield PublishPayload(encode_request(topic, messages.slice(start, end - start)), end - start)
        start = end


def encode_request(topic: str, messages: pa.RecordBatch) -> bytes:
    """Encode one PublishRequest from a batch of MESSAGE_SCHEMA."""
    offsets = pa.array([0, messages.num_rows], pa.int32())
    request = pa.record_batch(
        {
            "topic": pa.array([topic]),
            "messages": pa.ListArray.from_arrays(offsets, messages.to_struct_array()),
        }
    )
    return encode("PublishRequest", request)


def encode(message_name: str, batch: pa.RecordBatch) -> bytes:
    """Encode a batch of one row as one message of the given kind."""
    try:
        encoded: Any = handler(message_name).record_batch_to_array(batch)
    except (ValueError, pa.ArrowException) as exc:
        raise _wire_error(message_name, b"", str(exc)) from exc
    except BaseException as exc:
        raise _panic_or_itself(exc, message_name, b"") from exc
    return bytes(encoded[0].as_py())


def cut_points(
    sizes: Ints, max_rows: int, max_bytes: int, used_rows: int = 0, used_bytes: int = 0
) -> list[int]:
    """Cut consecutive items into runs; give the end of each.

    A run has at most `max_rows` items and `max_bytes` bytes, or a single item. `used_*` says what
    the first run already holds: its end is 0 when nothing more fits.
    """
    totals = np.cumsum(sizes)
    ends: list[int] = []
    start = 0
    while start < len(sizes):
        before = int(totals[start - 1]) if start else 0
        end = int(np.searchsorted(totals, before + max_bytes - used_bytes, side="right"))
        end = min(end, start + max_rows - used_rows)
        if end <= start:
            end = start if used_rows else start + 1
        ends.append(end)
        start, used_rows, used_bytes = end, 0, 0
    return ends


def _varint_sizes(values: Ints) -> Ints:
    limits = np.array([2**7, 2**14, 2**21, 2**28], np.int64)
    return np.searchsorted(limits, values, side="right").astype(np.int64) + 1


def _field_sizes(lengths: Ints) -> Ints:
    # Tag, length, content.
    return 1 + _varint_sizes(lengths) + lengths


def _optional_sizes(lengths: Ints) -> Ints:
    # proto3 leaves an empty field out.
    return np.where(lengths == 0, 0, _field_sizes(lengths))


def topic_size(topic: str) -> int:
    """Give the bytes that the topic's name takes in a request."""
    return int(_optional_sizes(np.array([len(topic.encode())], np.int64))[0])


def byte_lengths(values: pa.Array) -> Ints:
    """Give each value's length in bytes; a null has none."""
    lengths = pc.fill_null(pc.binary_length(values), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def map_spans(attributes: pa.MapArray) -> tuple[Ints, pa.Array, pa.Array]:
    """Give a map column as offsets (one more than rows), keys and values, whatever its slice."""
    if attributes.null_count:
        # An Arrow null may still span entries; the copy does not.
        attributes = pc.if_else(pc.is_valid(attributes), attributes, pa.scalar([], attributes.type))
    offsets = attributes.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    keys = attributes.keys.slice(first, last - first)
    return offsets - first, keys, attributes.items.slice(first, last - first)


def framed_sizes(messages: pa.RecordBatch) -> Ints:
    """Give the exact bytes that each row of MESSAGE_SCHEMA takes in a request."""
    size = _optional_sizes(byte_lengths(messages.column("data")))
    size = size + _optional_sizes(byte_lengths(messages.column("ordering_key")))
    offsets, keys, items = map_spans(messages.column("attributes"))
    if len(keys):
        # ptars writes an entry's key even if it is empty, its value only if it is not.
        parts = _field_sizes(byte_lengths(keys)) + _optional_sizes(byte_lengths(items))
        entries = _field_sizes(parts)
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(entries)])
        size = size + totals[offsets[1:]] - totals[offsets[:-1]]
    framed: Ints = 1 + _varint_sizes(size) + size
    return framed
