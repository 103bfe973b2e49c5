"""The wire layer against protobuf objects in a Python loop, on the same bytes, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.pubsub_v1.types import pubsub as api

from benchmarks.emulator import MESSAGES_PER_REQUEST, canned_response
from penstock.pubsub.encoding import MESSAGE_SCHEMA, decode_streaming_pull, encode_publish

_ROUNDS = 200
_LOOP_ROUNDS = 20
_TOPIC = "projects/bench/topics/bench"


def micros_per_message(rounds: int, work: Callable[[], Any]) -> float:
    """Time `work` on one request's worth of messages."""
    work()
    began = time.perf_counter()
    for _ in range(rounds):
        work()
    return (time.perf_counter() - began) / rounds / MESSAGES_PER_REQUEST * 1e6


def decode_in_a_loop(payload: bytes) -> pa.Table:
    """Do what a reader without the wire layer does: objects, dicts, Arrow."""
    response = api.StreamingPullResponse.pb().FromString(payload)
    rows = [
        {
            "message_id": received.message.message_id,
            "data": received.message.data,
            "attributes": list(received.message.attributes.items()),
            "ordering_key": received.message.ordering_key or None,
        }
        for received in response.received_messages
    ]
    return pa.Table.from_pylist(rows)


def encode_in_a_loop(batch: pa.RecordBatch) -> bytes:
    """Do what a writer without the wire layer does."""
    request = api.PublishRequest.pb()(topic=_TOPIC)
    for row in batch.to_pylist():
        message = request.messages.add(data=row["data"])
        message.attributes.update(row["attributes"])
    encoded: bytes = request.SerializeToString()
    return encoded


def main() -> None:
    """Print the cost of a message each way, and the ratios."""
    payload = canned_response()
    rows = decode_streaming_pull(payload).rows.select(MESSAGE_SCHEMA.names)
    decode = micros_per_message(_ROUNDS, lambda: decode_streaming_pull(payload))
    decode_loop = micros_per_message(_LOOP_ROUNDS, lambda: decode_in_a_loop(payload))
    encode = micros_per_message(
        _ROUNDS, lambda: list(encode_publish(_TOPIC, rows, MESSAGES_PER_REQUEST, 9_000_000))
    )
    encode_loop = micros_per_message(_LOOP_ROUNDS, lambda: encode_in_a_loop(rows))
    print(f"{'decode, wire to Arrow':32} {decode:8.2f} us/message")
    print(f"{'decode, objects in a loop':32} {decode_loop:8.2f} us/message")
    print(f"{'encode, Arrow to wire':32} {encode:8.2f} us/message")
    print(f"{'encode, objects in a loop':32} {encode_loop:8.2f} us/message")
    print(f"{'decode: loop / wire layer':32} {decode_loop / decode:8.1f} x")
    print(f"{'encode: loop / wire layer':32} {encode_loop / encode:8.1f} x")


if __name__ == "__main__":
    main()
