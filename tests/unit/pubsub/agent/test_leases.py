"""Acks and leases: what is sent again, what is counted, what is prolonged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1 import types

from penstock._core.clock import ManualClock
from penstock.pubsub.agent.leases import AckSender, LeaseKeeper, Settler
from penstock.pubsub.agent.reservoir import Reservoir
from penstock.pubsub.client import ACKNOWLEDGE, PubSubClient
from penstock.pubsub.errors import CallFailed
from penstock.pubsub.source.options import PubSubSourceOptions
from penstock.pubsub.spool.format import SpoolKey
from penstock.testing import Fault
from tests.support.pubsub_service import Service, running_service
from tests.support.scripted_client import ScriptedClient
from tests.support.waiting import wait_for
from tests.unit.pubsub.agent.test_reservoir import received, take

SUBSCRIPTION = "projects/p/subscriptions/s"
AckRequest = types.AcknowledgeRequest.pb()
ModifyRequest = types.ModifyAckDeadlineRequest.pb()


class Script:
    """Answers Acknowledge and ModifyAckDeadline as it is told, then with success."""

    def __init__(self, *outcomes: CallFailed | None) -> None:
        self.outcomes = list(outcomes)
        self.acked: list[list[str]] = []
        self.modified: list[tuple[list[str], int]] = []
        self.clock = ManualClock()
        answers: dict[str, Callable[..., bytes]] = {
            "Acknowledge": self._acknowledge,
            "ModifyAckDeadline": self._modify,
        }
        self.client = ScriptedClient(answers)
        self.sender = AckSender(self.client, SUBSCRIPTION, self.clock)

    def _acknowledge(self, payload: bytes, timeout: float) -> bytes:
        self.acked.append(list(AckRequest.FromString(payload).ack_ids))
        return self._end()

    def _modify(self, payload: bytes, timeout: float) -> bytes:
        request = ModifyRequest.FromString(payload)
        self.modified.append((list(request.ack_ids), request.ack_deadline_seconds))
        return self._end()

    def _end(self) -> bytes:
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        return b""


def ids(*names: str) -> list[pa.StringArray]:
    return [pa.array(names, pa.string())]


def test_a_passing_failure_is_sent_again() -> None:
    script = Script(CallFailed("UNAVAILABLE", "x"), CallFailed("RESOURCE_EXHAUSTED", "x"))
    assert script.sender.acknowledge(ids("a", "b")) == 2
    assert script.acked == [["a", "b"]] * 3
    counters = script.sender.counters
    assert (counters.acked, counters.failures, counters.backoffs) == (2, 0, 2)


def test_a_lasting_failure_is_counted_and_not_repeated() -> None:
    script = Script(CallFailed("INVALID_ARGUMENT", "x"))
    assert script.sender.acknowledge(ids("a", "b")) == 0
    assert script.acked == [["a", "b"]]
    assert script.sender.counters.failures == 2


def test_an_ack_is_given_up_in_the_end() -> None:
    script = Script(*[CallFailed("UNAVAILABLE", "x")] * 100)
    assert script.sender.acknowledge(ids("a")) == 0
    assert 2 < len(script.acked) < 20
    assert script.sender.counters.failures == 1


def test_an_agent_that_ends_does_not_try_for_ever() -> None:
    """However many requests there are: a service that is gone costs the given time, once."""
    script = Script(*[CallFailed("UNAVAILABLE", "x")] * 10_000)
    script.sender.give_up_in(10)
    began = script.clock.monotonic()
    many = [pa.array([f"{number:0>190}" for number in range(100_000)])]
    assert script.sender.hand_back(many) == 0
    # Four at once, and no wait is longer than five seconds.
    assert script.clock.monotonic() - began < 10 + 4 * 5
    assert script.sender.counters.failures == 100_000


def test_ids_that_failed_for_a_moment_are_sent_again_without_the_lost_ones() -> None:
    reasons = {
        "b": "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE",
        "c": "PERMANENT_FAILURE_INVALID_ACK_ID",
        "d": "TRANSIENT_FAILURE_UNORDERED_ACK_ID",
    }
    script = Script(CallFailed("INVALID_ARGUMENT", "some failed", reasons))
    assert script.sender.acknowledge(ids("a", "b", "c", "d")) == 3
    # The service may not have had room to name `a`.
    assert script.acked == [["a", "b", "c", "d"], ["a", "b", "d"]]
    assert (script.sender.counters.acked, script.sender.counters.failures) == (3, 1)


def test_ids_that_all_failed_for_good_are_not_sent_again() -> None:
    reasons = dict.fromkeys("ab", "PERMANENT_FAILURE_INVALID_ACK_ID")
    script = Script(CallFailed("FAILED_PRECONDITION", "all failed", reasons))
    assert script.sender.acknowledge(ids("a", "b", "c")) == 1
    assert len(script.acked) == 1
    assert script.sender.counters.failures == 2


def test_requests_stay_below_what_the_service_takes() -> None:
    script = Script()
    names = [f"{number:0>190}" for number in range(6000)]
    assert script.sender.acknowledge([pa.array(names[:2000]), pa.array(names[2000:])]) == 6000
    # Several are under way at once.
    assert [name for request in sorted(script.acked) for name in request] == names
    assert all(sum(len(name) + 4 for name in request) < 524_288 for request in script.acked)


def test_orders_are_carried_out_and_confirmed() -> None:
    script, reservoir, settled = Script(), Reservoir(), []
    reservoir.put(received(list(range(4))), 0.0, 60.0)
    deliveries = [reservoir.take(1, index, 2, 2**62, 2) for index in range(2)]
    settler = Settler(reservoir, script.sender, settled.extend)
    settler.start()
    settler.order([deliveries[0].number], [deliveries[1].number])
    settler.stop()
    assert script.acked == [["ack-0", "ack-1"]]
    assert script.modified == [(["ack-2", "ack-3"], 0)]
    assert settled == [delivery.number for delivery in deliveries]
    assert reservoir.held_numbers() == []


def test_leases_are_prolonged_when_half_is_over() -> None:
    script, reservoir = Script(), Reservoir()
    keeper = LeaseKeeper(reservoir, script.sender, script.clock, 60)
    now = script.clock.monotonic()
    reservoir.put(received([1]), now, now + 60)
    reservoir.put(received([2]), now, now + 60)
    reservoir.take(1, 0, 1, 2**62, 1)
    script.clock.advance(29)
    keeper.extend_due()
    assert script.modified == []
    script.clock.advance(2)
    keeper.extend_due()
    assert sorted(script.modified[0][0]) == ["ack-1", "ack-2"]
    assert script.modified[0][1] == 60
    keeper.extend_due()
    assert len(script.modified) == 1


def test_a_lease_that_was_not_taken_is_not_believed() -> None:
    """The service took one of two requests: only those leases are longer now."""
    reservoir, script = Reservoir(), Script(CallFailed("INVALID_ARGUMENT", "x"))
    keeper = LeaseKeeper(reservoir, script.sender, script.clock, 60)
    now = script.clock.monotonic()
    reservoir.put(received([1]), now, now + 60)
    taken = take(reservoir)
    script.clock.advance(40)
    keeper.extend_due()
    assert not reservoir.is_leased(taken.number, now + 61)
    keeper.extend_due()
    assert reservoir.is_leased(taken.number, now + 100)


def test_a_lease_that_was_prolonged_after_its_end_is_not_believed() -> None:
    """The service takes the request without a word, and the message is with another by then."""
    reservoir, script = Reservoir(), Script()
    keeper = LeaseKeeper(reservoir, script.sender, script.clock, 60)
    now = script.clock.monotonic()
    reservoir.put(received([1]), now, now + 60)
    taken = take(reservoir)
    script.clock.advance(61)
    keeper.extend_due()
    assert script.modified
    assert not reservoir.is_leased(taken.number, now + 61)


def test_each_array_is_told_whether_all_of_it_was_taken() -> None:
    script = Script(CallFailed("INVALID_ARGUMENT", "x"))
    # The ids of one request are 190 bytes long: the second array is cut in two.
    long = [pa.array([f"{n:0>190}" for n in range(count)]) for count in (10, 5000, 10)]
    told = script.sender.extend(long, 60)
    assert len(script.modified) > 1
    # Requests are sent at the same time: one of them failed, whichever came first.
    assert told.count(False) in (1, 2)
    assert script.sender.extend([*long, pa.array([], pa.string())], 60) == [True] * 4


def test_an_object_is_not_sure_if_its_leases_had_ended() -> None:
    """The service confirms acks that come too late, when another has the messages already."""
    for seconds, is_timely in ((10, True), (61, False)):
        reservoir, script = Reservoir(), Script()
        now = script.clock.monotonic()
        reservoir.put(received([1]), now, now + 60)
        taken = take(reservoir)
        reservoir.end_read(taken.number)
        sure: list[bool] = []
        settler = Settler(
            reservoir,
            script.sender,
            lambda numbers: None,
            lambda key, *, is_sure, sure=sure: sure.append(is_sure),
        )
        script.clock.advance(seconds)
        settler.acknowledge_object(taken.number, SpoolKey(1, 0), 1)
        settler.start()
        wait_for(lambda sure=sure: sure)
        settler.stop()
        assert sure == [is_timely]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running


def test_the_service_names_the_ids_that_failed(service: Service) -> None:
    topic, subscription = service.pair(enable_exactly_once_delivery=True)
    service.publish(topic, b"1", b"2")
    pulled = service.pull_some(subscription, 2)
    options = {"subscriptionId": subscription, "endpoint": service.emulator.address}
    client = PubSubClient(PubSubSourceOptions.parse(options))
    names = [one.ack_id for one in pulled]
    try:
        service.emulator.inject(Fault(kind="fail_ack_ids", method="Acknowledge", count=1))
        sender = AckSender(client, subscription, ManualClock())
        assert sender.acknowledge(ids(*names, "not-an-id")) == 2
        wait_for(lambda: service.emulator.counters(subscription), lambda seen: seen.acked == 2)
        payload = AckRequest(subscription=subscription, ack_ids=["x"]).SerializeToString()
        with pytest.raises(CallFailed) as caught:
            client.call(ACKNOWLEDGE, subscription, payload, 5)
    finally:
        client.close()
    assert caught.value.reasons == {"x": "PERMANENT_FAILURE_INVALID_ACK_ID"}
    assert sender.counters.failures == 1


def test_a_failed_call_without_reasons_has_none() -> None:
    failure: Any = CallFailed("UNAVAILABLE", "x")
    assert failure.reasons == {}
