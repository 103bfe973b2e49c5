"""Messages between agents and coordinator: they survive the wire, and garbage is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import WireError
from penstock.pubsub.agent import protocol

MESSAGES = [
    protocol.Hello("a", "host", 1, 2, True),
    protocol.Status(buffered_rows=1, quiet_seconds=0.5),
    protocol.Deliver(1, 2, 3, 4, 5, 6),
    protocol.Complete(1, 2),
    protocol.GaveBack(1),
    protocol.Settled([1, 2]),
    protocol.Fatal("X", "s", "f", "r", "log\n\u00e9"),
    protocol.Answer(1, True),
    protocol.Order([1], []),
    protocol.Release(10.0),
    protocol.Stop(),
    protocol.Claim(1, 2, 3),
    protocol.Durable(1, 2, 3, 4, 5),
    protocol.GaveUp(1, 2),
    protocol.Found(1, 2, 3, 4),
    protocol.Acked(1, 2, True),
    protocol.Decision(1, "write"),
    protocol.Suspect([[1, 2], [3, 4]]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_wire(message: Any) -> None:
    assert protocol.decode(protocol.encode(message)) == message


def test_every_kind_is_tried_here() -> None:
    assert {type(message).__name__ for message in MESSAGES} == set(protocol._KINDS)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"[]", b"1", b"{}", b'{"kind":"None"}', b'{"kind":"Stop","more":1}'],
)
def test_garbage_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="same version"):
        protocol.decode(payload)
