"""Damaged input of every kind that crosses a process or outlives one: refused, never a crash.

A seed is drawn for each run of the tests and shown on failure; each case is a mutation of something
valid. Together more than 20,000 cases.
"""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psutil
import pytest
from pyarrow import flight

from penstock.errors import CheckpointError, PenstockError, SpoolError, WireError
from penstock.pubsub.agent import protocol
from penstock.pubsub.agent.config import AgentConfig
from penstock.pubsub.agent.server import AgentServer, Fetch
from penstock.pubsub.encoding import decode_pull, decode_streaming_pull
from penstock.pubsub.source.coordinator import Coordinator
from penstock.pubsub.source.offsets import PubSubOffset
from penstock.pubsub.spool.format import BrokenObjectError, SpoolKey, decode_object, encode_object
from tests.support.waiting import wait_for
from tests.unit.pubsub.agent.test_protocol import MESSAGES
from tests.unit.pubsub.agent.test_reservoir import received
from tests.unit.pubsub.agent.test_server import Agent as ServedAgent
from tests.unit.pubsub.test_encoding import valid_response

ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**63, 2**200, 1.5, float("inf"), "", "x", "\x00", "é" * 99),
    *([], [[]], {}, {"a": 1}, [1, "2", None], "9" * 5000),
]


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    seed = random.randrange(2**32)
    request.node.user_properties.append(("seed", seed))
    print("seed", seed)  # noqa: T201 - pytest shows it on failure
    return random.Random(seed)


def mutate_bytes(chance: random.Random, valid: bytes) -> bytes:
    data = bytearray(valid)
    for _ in range(chance.choice((1, 1, 2, 5, 50))):
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(6):
            case 0 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del data[at : at + chance.randrange(1, 64)]
            case 4:
                del data[chance.randrange(len(data) + 1) :]
            case _:
                data += data[at : at + 64]
    return bytes(data)


def mutate_json(chance: random.Random, valid: dict[str, Any]) -> bytes:
    body = json.loads(json.dumps(valid))
    for _ in range(chance.choice((1, 1, 2))):
        key = chance.choice([*body, "extra"])
        if chance.random() < 0.2:
            body.pop(key, None)
        else:
            body[key] = chance.choice(ODD_VALUES)
    text = json.dumps(body).encode()
    return mutate_bytes(chance, text) if chance.random() < 0.3 else text


def try_all(cases: Iterator[Any], use: Callable[[Any], object], *expected: Any) -> int:
    """Use every case; only the expected errors may come, and they must explain themselves."""
    count = 0
    for case in cases:
        count += 1
        try:
            use(case)
        except expected as error:
            told = error
        else:
            continue
        assert str(told), case
        assert not isinstance(told, PenstockError) or told.remedy
    return count


def test_wire_bytes(chance: random.Random) -> None:
    """Responses of the service: rows, or a WireError; no memory goes astray."""
    valid = valid_response()
    before = psutil.Process().memory_info().rss
    cases = (mutate_bytes(chance, valid) for _ in range(4000))
    assert try_all(cases, decode_streaming_pull, WireError) == 4000
    cases = (mutate_bytes(chance, valid) for _ in range(2000))
    assert try_all(cases, decode_pull, WireError) == 2000
    cases = (chance.randbytes(chance.randrange(300)) for _ in range(2000))
    assert try_all(cases, decode_streaming_pull, WireError) == 2000
    assert psutil.Process().memory_info().rss - before < 500_000_000


def test_offsets(chance: random.Random) -> None:
    """Checkpoints: an offset, or a CheckpointError."""
    valid = [PubSubOffset(7).to_json(), PubSubOffset(7, 4, "abc").to_json()]

    def use(payload: bytes) -> None:
        try:
            value = json.loads(payload)
        except (ValueError, UnicodeDecodeError):
            # Spark's own files are JSON, or Spark says so.
            return
        offset = PubSubOffset.from_json(value)
        assert offset.tick >= 0
        assert PubSubOffset.from_json(offset.to_json()) == offset

    cases = (mutate_json(chance, chance.choice(valid)) for _ in range(5000))
    assert try_all(cases, use, CheckpointError) == 5000


def test_spool_objects(chance: random.Random) -> None:
    """Objects of a spool: broken or foreign; a changed one is never read as good."""
    key = SpoolKey(3, 1)
    valid = encode_object("abc", key, [received(list(range(20))).rows])

    def use(payload: bytes) -> None:
        if payload != valid:
            decode_object("abc", key, payload)
            raise AssertionError("a damaged object was read")

    cases = (mutate_bytes(chance, valid) for _ in range(4000))
    assert try_all(cases, use, BrokenObjectError, SpoolError) == 4000


def test_messages_between_agent_and_coordinator(chance: random.Random) -> None:
    """Whatever is decoded has the types that it says."""
    valid = [json.loads(protocol.encode(message)) for message in MESSAGES]
    cases = (mutate_json(chance, chance.choice(valid)) for _ in range(6000))

    def use(payload: bytes) -> None:
        message = protocol.decode(payload)
        assert protocol.decode(protocol.encode(message)) == message

    assert try_all(cases, use, WireError) == 6000


def test_partitions(chance: random.Random) -> None:
    """What tasks bring along: tickets and configurations."""
    ticket = dataclasses.asdict(Fetch(1, 2, 3, 4, 5, 6))
    cases = (mutate_json(chance, ticket) for _ in range(1500))
    refused = (ValueError, TypeError, AttributeError)
    assert try_all(cases, Fetch.parse, *refused) == 1500
    config = dataclasses.asdict(AgentConfig("run", "subscription", "coordinator"))
    cases = (mutate_json(chance, config) for _ in range(500))
    parse: Callable[[bytes], object] = lambda text: AgentConfig.from_json(text.decode())  # noqa: E731
    assert try_all(cases, parse, *refused) == 500


def test_a_served_agent_survives_any_ticket(chance: random.Random) -> None:
    ticket = dataclasses.asdict(Fetch(1, 2, 3, 4, 5, 6))
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as directory:
        agent = ServedAgent(directory)
        try:
            with flight.connect(agent.location) as client:
                cases = (mutate_json(chance, ticket) for _ in range(300))
                use: Callable[[bytes], object] = lambda text: (  # noqa: E731
                    client.do_get(flight.Ticket(text)).read_all()
                )
                assert try_all(cases, use, flight.FlightError) == 300
                actions = (chance.randbytes(chance.randrange(12)) for _ in range(200))
                ask: Callable[[bytes], object] = lambda text: (  # noqa: E731
                    list(client.do_action(flight.Action("complete", text)))
                )
                assert try_all(actions, ask, flight.FlightError) == 200
                assert list(client.do_action("ping"))
        finally:
            agent.server.shutdown()
    assert isinstance(agent.server, AgentServer)


class Caller:
    """A client of the coordinator that may send anything."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{coordinator.port}", [("grpc.max_send_message_length", -1)]
        )

    def call(self, payloads: list[bytes], token: str | None = None) -> str:
        """Send these on one link; gives the code with which it ended, or OK after one answer."""
        metadata = ((protocol.TOKEN_KEY, self._coordinator.token if token is None else token),)
        link = self._channel.stream_stream(protocol.LINK_METHOD)(
            iter(payloads), metadata=metadata, timeout=10
        )
        try:
            for _ in link:
                pass
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def close(self) -> None:
        self._channel.close()


def test_a_coordinator_survives_any_caller(chance: random.Random) -> None:
    """Bad tokens, replayed, damaged and oversized calls: each ends its own link alone."""
    hello = protocol.encode(protocol.Hello("x", "host", 1, 2, True))
    valid = [json.loads(protocol.encode(message)) for message in MESSAGES]
    coordinator = Coordinator()
    coordinator.start()
    caller = Caller(coordinator)
    files = len(psutil.Process().open_files())
    try:
        for _ in range(100):
            token = chance.choice(["", "x", coordinator.token[:-1], coordinator.token + "x", "é"])
            if token.isascii():
                assert caller.call([hello], token) == "UNAUTHENTICATED"
        codes = {"OK", "INVALID_ARGUMENT", "UNKNOWN", "CANCELLED"}
        for _ in range(300):
            count = chance.randrange(1, 5)
            calls = [mutate_json(chance, chance.choice(valid)) for _ in range(count)]
            assert caller.call([hello, *calls]) in codes
            assert caller.call(calls) in codes
        replayed = [hello, hello, *[protocol.encode(message) for message in MESSAGES] * 2]
        assert caller.call(replayed) in codes
        huge = b" " * (protocol.MAX_MESSAGE_BYTES + 1)
        assert caller.call([hello, huge]) == "RESOURCE_EXHAUSTED"
        # Nothing of all this is left, and it still works.
        wait_for(lambda: coordinator.overview().agents == 0)
        assert caller.call([hello]) == "OK"
        wait_for(lambda: len(psutil.Process().open_files()) <= files + 2)
    finally:
        caller.close()
        coordinator.stop()
