"""Streams on their event loop, against an emulator: opened, closed, held back, given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock._core.clock import SYSTEM_CLOCK
from penstock.errors import PenstockError
from penstock.pubsub.agent.puller import Puller, PullerThread, PullLimits
from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.source.options import PubSubSourceOptions
from tests.support.pubsub_service import Service, running_service
from tests.support.waiting import wait_for


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running


class Pulling:
    """Streams with their reservoir."""

    def __init__(
        self,
        service: Service,
        subscription: str,
        streams: int,
        held_bytes: int,
        standstill_seconds: float,
    ) -> None:
        self.reservoir = Reservoir()
        self.errors: list[PenstockError] = []
        limits = PullLimits(60, 1000, 10**9, held_bytes)
        options = {"subscriptionId": subscription, "endpoint": service.emulator.address}
        pullers = [
            Puller(
                subscription,
                "client",
                self.reservoir,
                limits,
                SYSTEM_CLOCK,
                lambda: None,
                self.errors.append,
            )
            for _ in range(streams)
        ]
        parsed = PubSubSourceOptions.parse(options)
        self.thread = PullerThread(
            parsed, pullers, self.errors.append, standstill_seconds=standstill_seconds
        )
        self.thread.start()

    @property
    def rows(self) -> int:
        return self.reservoir.state().buffered_rows


@pytest.fixture
def pull(service: Service) -> Iterator[Any]:
    made: list[Pulling] = []

    def make(
        subscription: str,
        streams: int = 1,
        held_bytes: int = 10**9,
        standstill_seconds: float = 30.0,
    ) -> Pulling:
        made.append(Pulling(service, subscription, streams, held_bytes, standstill_seconds))
        return made[-1]

    yield make
    for one in made:
        one.thread.stop()
        assert not one.thread._thread.is_alive()


def test_all_streams_pull(service: Service, pull: Any) -> None:
    topic, subscription = service.pair()
    pulling = pull(subscription, streams=3)
    wait_for(lambda: service.emulator.counters(subscription).streams == 3)
    for number in range(30):
        service.publish(topic, b"%d" % number)
    wait_for(lambda: pulling.rows == 30)
    assert sum(counters.received for counters in pulling.thread.counters) == 30


def test_closed_streams_pull_nothing_until_every_reason_is_gone(
    service: Service, pull: Any
) -> None:
    topic, subscription = service.pair()
    pulling = pull(subscription)
    wait_for(lambda: service.emulator.counters(subscription).streams == 1)
    pulling.thread.close("one")
    pulling.thread.close("two")
    wait_for(lambda: service.emulator.counters(subscription).streams == 0)
    service.publish(topic, b"x")
    pulling.thread.open("one")
    assert pulling.rows == 0
    pulling.thread.open("two")
    wait_for(lambda: pulling.rows == 1)


def test_a_reason_can_end_by_itself(service: Service, pull: Any) -> None:
    topic, subscription = service.pair()
    pulling = pull(subscription)
    pulling.thread.close("for a moment", 0.05)
    service.publish(topic, b"x")
    wait_for(lambda: pulling.rows == 1)


def test_a_stream_that_is_closed_loses_no_response(service: Service, pull: Any) -> None:
    """All that the service has sent is here, to be handed back; none waits for its lease to end."""
    topic, subscription = service.pair()
    for _ in range(200):
        service.publish(topic, *[b"x" * 1000] * 100)
    pulling = pull(subscription, streams=2)
    wait_for(lambda: pulling.rows)
    pulling.thread.stop()
    assert pulling.rows == service.emulator.counters(subscription).outstanding


def test_a_full_reservoir_stops_the_sender(service: Service, pull: Any) -> None:
    topic, subscription = service.pair()
    for _ in range(50):
        service.publish(topic, *[b"x" * 10_000] * 100)
    pulling = pull(subscription, held_bytes=1_000_000)
    wait_for(lambda: pulling.reservoir.total_bytes >= 1_000_000)
    # One response more than the limit at most.
    assert pulling.reservoir.total_bytes < 12_000_000
    taken = pulling.reservoir.take(1, 0, 2**62, 2**62, 1)
    assert pulling.rows == 0
    pulling.reservoir.settle(taken.number)
    pulling.thread.notice_room()
    wait_for(lambda: pulling.rows)


def test_what_waited_in_a_stream_for_long_is_not_taken_for_fresh(
    service: Service, pull: Any
) -> None:
    """Its lease began when it was sent. It is forgotten, and a new stream brings the rest."""
    topic, subscription = service.pair()
    for _ in range(50):
        service.publish(topic, *[b"x" * 10_000] * 100)
    pulling = pull(subscription, held_bytes=1_000_000, standstill_seconds=0.2)
    wait_for(lambda: pulling.reservoir.total_bytes >= 1_000_000)
    full_at = SYSTEM_CLOCK.monotonic()
    wait_for(lambda: SYSTEM_CLOCK.monotonic() - full_at > 0.5)
    taken = pulling.reservoir.take(1, 0, 2**62, 2**62, 1)
    pulling.reservoir.settle(taken.number)
    pulling.thread.notice_room()
    wait_for(lambda: pulling.rows)

    def shed() -> int:
        count = pulling.reservoir.expire(SYSTEM_CLOCK.monotonic() + 1)
        pulling.thread.notice_room()
        return count

    # The first one that comes has waited.
    assert shed() > 0
    wait_for(lambda: (shed(), service.emulator.counters(subscription).streams == 0)[1])
    wait_for(lambda: (shed(), service.emulator.counters(subscription).streams == 1)[1])
    # And what the new stream brings is fresh.
    wait_for(lambda: pulling.rows and not shed())


def test_a_subscription_that_is_not_there_is_an_error_and_no_loop(
    service: Service, pull: Any
) -> None:
    pulling = pull("projects/p/subscriptions/none")
    wait_for(lambda: pulling.errors)
    pulling.thread.stop()
    assert [error.code for error in pulling.errors] == ["NOT_FOUND"]


def test_what_is_no_pubsub_is_an_error(
    service: Service, pull: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(payload: bytes) -> Any:
        raise RuntimeError("unforeseen")

    topic, subscription = service.pair()
    monkeypatch.setattr("penstock.pubsub.agent.puller.decode_streaming_pull", fail)
    pulling = pull(subscription)
    service.publish(topic, b"x")
    wait_for(lambda: pulling.errors)
    assert pulling.errors[0].code == "AGENT_PULL"
