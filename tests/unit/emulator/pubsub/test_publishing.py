"""What a PublishRequest may hold: each limit, one below and one above."""

from __future__ import annotations

from typing import Any

import pytest
from google.pubsub_v1 import types

from penstock.emulator.pubsub import publishing, wire
from penstock.emulator.pubsub.rpc import Code, RpcError


def check(*messages: dict[str, Any]) -> None:
    request = types.PublishRequest(topic="t", messages=messages)
    publishing.check_limits(wire.decode_publish(types.PublishRequest.serialize(request)))


@pytest.mark.parametrize(
    ("fits", "too_large", "field"),
    [
        ({"data": b"x"}, {"data": b""}, "messages"),
        ({"attributes": {"a": ""}}, {"ordering_key": "a"}, "messages"),
        ({"data": b"x", "message_id": "1"}, {"message_id": "1"}, "messages"),
        (
            {"attributes": {f"{n}": "" for n in range(100)}},
            {"attributes": {f"{n}": "" for n in range(101)}},
            "attributes_count",
        ),
        ({"attributes": {"k" * 256: ""}}, {"attributes": {"k" * 257: ""}}, "attribute key size"),
        (
            {"attributes": {"k": "\u00e9" * 512}},
            {"attributes": {"k": "\u00e9" * 513}},
            "attribute value size",
        ),
        ({"attributes": {"k": "v"}}, {"attributes": {"": "v"}}, "attributes"),
        (
            {"attributes": {"Goog": "v", "go": "", "xgoog": ""}},
            {"attributes": {"goog": ""}},
            "attributes",
        ),
        (
            {"data": b"x", "ordering_key": "k" * 1024},
            {"data": b"x", "ordering_key": "k" * 1025},
            "ordering_key",
        ),
    ],
)
def test_limit_holds_and_names_its_field(
    fits: dict[str, Any], too_large: dict[str, Any], field: str
) -> None:
    check(fits)
    check({"data": b"first"}, fits, fits)
    for messages in ([too_large], [fits, too_large], [too_large, fits]):
        with pytest.raises(RpcError) as caught:
            check(*messages)
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert caught.value.details[0].field_violations[0].field == field


def test_count_of_messages_is_1_to_1000() -> None:
    check(*[{"data": b"x"}] * 1000)
    for count, field in ((0, "messages"), (1001, "message_count")):
        with pytest.raises(RpcError) as caught:
            check(*[{"data": b"x"}] * count)
        assert caught.value.details[0].field_violations[0].field == field


def test_request_of_exactly_ten_mebibytes_fits() -> None:
    overhead = len(
        types.PublishRequest.serialize(
            types.PublishRequest(topic="t", messages=[{"data": b"x" * 10_000_000}])
        )
    )
    largest = publishing.MAX_REQUEST_BYTES - overhead + 10_000_000
    check({"data": b"x" * largest})
    with pytest.raises(RpcError, match=r"10485761 in the request.*maximum value is 10485760"):
        check({"data": b"x" * (largest + 1)})


def test_data_after_other_fields_counts_as_data() -> None:
    """Serializers may write fields in any order."""
    message = b"\x2a\x01k" + b"\x0a\x01x"
    payload = b"\x0a\x01t" + b"\x12" + bytes([len(message)]) + message
    publishing.check_limits(wire.decode_publish(payload))
    empty = b"\x0a\x00" + b"\x2a\x01k"
    payload = b"\x0a\x01t" + b"\x12" + bytes([len(empty)]) + empty
    with pytest.raises(RpcError):
        publishing.check_limits(wire.decode_publish(payload))
    later = b"\x0a\x00" + b"\x0a\x01x"
    payload = b"\x0a\x01t" + b"\x12" + bytes([len(later)]) + later
    publishing.check_limits(wire.decode_publish(payload))
