"""The publishing state machine, with a clock and a service that the test owns."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._core.clock import ManualClock
from penstock.errors import (
    AccessError,
    ConnectError,
    PenstockError,
    ResourceError,
    WireError,
    WriteRejectedError,
)
from penstock.pubsub.engine import PublishEngine
from penstock.pubsub.options import PubSubSinkOptions
from penstock.pubsub.rows import Rows, group, read_batch
from penstock.retry import TRANSIENT_CODES, Backoff
from tests.support.scripted_client import ScriptedClient, StartedCall

TOPIC = "projects/p/topics/orders"


class Bench:
    """An engine, its clock, and the calls it has started."""

    def __init__(self, **raw: str) -> None:
        merged = {"topicId": TOPIC, "endpoint": "127.0.0.1:1", "linger": "0s", **raw}
        self.options = PubSubSinkOptions.parse(merged)
        self.clock = ManualClock()
        self.client = ScriptedClient()
        self.events: list[tuple[Any, Any]] = []
        self.engine = PublishEngine(
            self.client,
            self.options,
            lambda request, outcome: self.events.append((request, outcome)),
            self.clock,
            Backoff(rng=random.Random(1)),
        )

    def rows(self, data: list[bytes], keys: list[str | None] | None = None) -> list[Rows]:
        columns: dict[str, Any] = {"data": pa.array(data, pa.binary())}
        if keys is not None:
            columns["ordering_key"] = pa.array(keys, pa.string())
        batch = read_batch(pa.record_batch(columns), self.options.topic, None)
        return list(group(batch, is_ordered=self.options.enable_message_ordering))

    def add(self, data: list[bytes], keys: list[str | None] | None = None) -> None:
        self.engine.add(self.rows(data, keys))
        self.engine.pump()

    def settle(self) -> None:
        """Let the engine take in what has ended, and act on it."""
        while self.events:
            self.engine.handle(*self.events.pop(0))
        self.engine.pump()

    def take(self) -> list[StartedCall]:
        started, self.client.started = self.client.started, []
        return started


def numbered(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def test_all_rows_are_sent_once_and_then_it_is_idle() -> None:
    bench = Bench(batchRows="10")
    bench.add(numbered(25))
    calls = bench.take()
    data = numbered(25)
    assert [call.data for call in calls] == [data[:10], data[10:20], data[20:]]
    assert not bench.engine.is_idle
    for call in calls:
        call.confirm()
    bench.settle()
    assert bench.engine.is_idle
    totals = bench.engine.totals
    assert (totals.messages, totals.requests, totals.retries) == (25, 3, 0)


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    bench = Bench(batchRows="1", maxInFlightRequests="3")
    bench.add(numbered(10))
    calls = bench.take()
    assert len(calls) == 3
    assert bench.engine.backlog == 7
    calls[1].confirm()
    bench.settle()
    assert [call.data for call in bench.take()] == [[b"3"]]


def test_a_request_waiting_for_its_retry_keeps_its_place() -> None:
    bench = Bench(batchRows="1", maxInFlightRequests="2")
    bench.add(numbered(5))
    for call in bench.take():
        call.fail("RESOURCE_EXHAUSTED")
    bench.settle()
    assert bench.take() == []
    assert bench.engine.backlog == 3


@pytest.mark.parametrize("code", sorted(TRANSIENT_CODES))
def test_a_passing_failure_is_retried_after_a_wait_with_the_same_messages(code: str) -> None:
    bench = Bench()
    bench.add(numbered(3))
    (first,) = bench.take()
    first.fail(code)
    bench.settle()
    assert bench.take() == []
    assert 0 < bench.engine.seconds_to_next() <= 0.1
    bench.clock.advance(bench.engine.seconds_to_next())
    bench.settle()
    (second,) = bench.take()
    assert second.data == first.data
    second.confirm()
    bench.settle()
    assert bench.engine.is_idle
    assert bench.engine.totals.retries == 1


def test_waits_between_retries_grow_and_are_never_zero() -> None:
    bench = Bench(flushTimeout="1h")
    bench.add([b"x"])
    waits = []
    for _ in range(60):
        bench.take()[0].fail("UNAVAILABLE")
        bench.settle()
        waits.append(bench.engine.seconds_to_next())
        bench.clock.advance(waits[-1])
        bench.settle()
    assert min(waits) >= 0.01
    assert max(waits) <= 30.0
    assert sum(waits[:10]) < sum(waits[-10:])


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("NOT_FOUND", ResourceError),
        ("PERMISSION_DENIED", AccessError),
        ("UNAUTHENTICATED", AccessError),
        ("INVALID_ARGUMENT", WriteRejectedError),
        ("FAILED_PRECONDITION", ResourceError),
    ],
)
def test_a_failure_that_stays_ends_it_at_once_and_names_the_topic(
    code: str, error: type[PenstockError]
) -> None:
    bench = Bench(batchRows="1")
    bench.add(numbered(3))
    calls = bench.take()
    calls[0].fail(code, "the service's reason")
    with pytest.raises(error, match=f"{TOPIC}.*the service's reason"):
        bench.settle()
    bench.engine.abandon()
    assert [call.is_cancelled for call in calls] == [False, True, True]


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_response_with_another_number_of_ids_is_a_wire_error(count: int) -> None:
    bench = Bench()
    bench.add(numbered(3))
    bench.take()[0].confirm(count)
    with pytest.raises(WireError, match=f"confirmed {count} messages of a request that carried 3"):
        bench.settle()


def test_a_response_that_is_not_protobuf_is_a_wire_error() -> None:
    bench = Bench()
    bench.add(numbered(3))
    bench.take()[0].done(b"\xff\xff")
    with pytest.raises(WireError):
        bench.settle()


def test_silence_for_the_flush_timeout_is_an_error_that_says_so() -> None:
    bench = Bench(flushTimeout="20s")
    bench.add(numbered(3))
    assert bench.engine.seconds_to_next() == 20.0
    bench.clock.advance(19.9)
    bench.settle()
    bench.clock.advance(0.1)
    with pytest.raises(ConnectError, match=r"FLUSH_TIMEOUT.*orders.*for 20s.*no answer came"):
        bench.settle()


def test_failures_without_end_are_an_error_that_names_the_last_one() -> None:
    bench = Bench(flushTimeout="20s")
    bench.add(numbered(3))

    def storm() -> None:
        while True:
            for call in bench.take():
                call.fail("RESOURCE_EXHAUSTED", "quota of project p")
            bench.settle()
            bench.clock.advance(bench.engine.seconds_to_next())
            bench.settle()

    with pytest.raises(ConnectError, match="RESOURCE_EXHAUSTED: quota of project p"):
        storm()


def test_each_confirmation_starts_the_flush_timeout_anew() -> None:
    bench = Bench(batchRows="1", maxInFlightRequests="1", flushTimeout="20s")
    bench.add(numbered(5))
    for _ in range(5):
        bench.clock.advance(15)
        bench.take()[0].confirm()
        bench.settle()
    assert bench.engine.is_idle


def test_time_without_anything_to_confirm_does_not_count() -> None:
    bench = Bench(flushTimeout="20s")
    bench.add([b"x"])
    bench.take()[0].confirm()
    bench.settle()
    assert bench.engine.seconds_to_next() == float("inf")
    bench.clock.advance(1000)
    bench.add([b"y"])
    bench.settle()
    assert len(bench.take()) == 1


def test_a_call_is_given_half_of_the_flush_timeout() -> None:
    bench = Bench(flushTimeout="20s")
    bench.add([b"x"])
    assert bench.take()[0].timeout_seconds == 10.0


def test_rows_of_the_next_batch_complete_a_request_that_lingers() -> None:
    bench = Bench(batchRows="10", linger="50ms")
    bench.add(numbered(4))
    assert bench.take() == []
    assert bench.engine.seconds_to_next() == pytest.approx(0.05)
    bench.add(numbered(8))
    (call,) = bench.take()
    assert call.data == [*numbered(4), *numbered(6)]
    bench.clock.advance(0.05)
    bench.settle()
    (rest,) = bench.take()
    assert rest.data == numbered(8)[6:]


def test_the_end_of_the_input_waits_for_nothing() -> None:
    bench = Bench(linger="60s")
    bench.add(numbered(4))
    bench.engine.end_input()
    bench.settle()
    assert len(bench.take()) == 1


def test_a_key_has_one_request_in_flight_and_keeps_its_order() -> None:
    bench = Bench(enableMessageOrdering="true", batchRows="2")
    keys: list[str | None] = ["a", "a", "b", "a", "a", "a", None, None, None]
    bench.add(numbered(9), keys)
    calls = bench.take()
    assert sorted(call.data for call in calls) == [[b"0", b"1"], [b"2"], [b"6", b"7"], [b"8"]]
    by_first = {call.data[0]: call for call in calls}
    by_first[b"0"].confirm()
    bench.settle()
    (second,) = bench.take()
    assert second.data == [b"3", b"4"]
    second.confirm()
    bench.settle()
    assert [call.data for call in bench.take()] == [[b"5"]]


def test_a_request_carries_one_ordering_key() -> None:
    bench = Bench(enableMessageOrdering="true")
    bench.add(numbered(6), ["a", "b", None, "a", "b", None])
    for call in bench.take():
        assert len({message.ordering_key for message in call.request.messages}) == 1


def test_nothing_of_a_key_overtakes_its_retry() -> None:
    bench = Bench(enableMessageOrdering="true", batchRows="1")
    bench.add(numbered(3), ["k"] * 3)
    bench.take()[0].fail("UNAVAILABLE")
    bench.settle()
    bench.add([b"3"], ["k"])
    assert bench.take() == []
    sent = []
    for _ in range(4):
        bench.clock.advance(1)
        bench.settle()
        (call,) = bench.take()
        sent += call.data
        call.confirm()
        bench.settle()
    assert sent == numbered(4)


DEAD = "projects/p/topics/refused"


def refusing(bad: set[bytes], bench: Bench) -> dict[str, list[Any]]:
    """Answer until it is idle; a request to the topic that has a bad message is refused whole."""
    stored: dict[str, list[Any]] = defaultdict(list)
    bench.engine.end_input()
    while not bench.engine.is_idle:
        bench.settle()
        for call in bench.take():
            if call.resource == TOPIC and bad & set(call.data):
                call.fail("INVALID_ARGUMENT", "does not match the schema")
            else:
                stored[call.resource].extend(call.request.messages)
                call.confirm()
    return stored


@given(
    bad=st.sets(st.integers(0, 39)),
    keys=st.lists(st.sampled_from([None, "a", "b"]), min_size=40, max_size=40),
    batch_rows=st.integers(1, 40),
)
@settings(deadline=None)
def test_only_the_messages_to_blame_go_to_the_dead_letter_topic(
    bad: set[int], keys: list[str | None], batch_rows: int
) -> None:
    bench = Bench(
        enableMessageOrdering="true", deadLetterTopic=DEAD, batchRows=str(batch_rows), linger="1s"
    )
    bench.add(numbered(40), keys)
    refused = {str(number).encode() for number in bad}
    stored = refusing(refused, bench)
    assert sorted(message.data for message in stored[TOPIC]) == sorted(set(numbered(40)) - refused)
    assert {message.data for message in stored[DEAD]} == refused
    for letter in stored[DEAD]:
        assert letter.attributes["penstock_error"] == "refused: does not match the schema"
        assert letter.attributes["penstock_topic"] == TOPIC
    for key in ("a", "b"):
        sent = [int(message.data) for message in stored[TOPIC] if message.ordering_key == key]
        assert sent == sorted(sent)
    assert bench.engine.totals.dead_lettered == len(refused)
    assert bench.engine.totals.messages == 40 - len(refused)


def test_finding_one_bad_message_takes_few_requests() -> None:
    bench = Bench(deadLetterTopic=DEAD)
    bench.add(numbered(1000))
    refusing({b"617"}, bench)
    assert bench.engine.totals.requests <= 12


def test_a_refusal_by_the_dead_letter_topic_is_an_error() -> None:
    bench = Bench(deadLetterTopic=DEAD)
    bench.add([b"bad"])
    bench.take()[0].fail("INVALID_ARGUMENT")
    bench.settle()
    bench.take()[0].fail("INVALID_ARGUMENT")
    with pytest.raises(WriteRejectedError, match=DEAD):
        bench.settle()


@given(
    keys=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=60),
    seed=st.integers(0, 10_000),
    batch_rows=st.integers(1, 7),
    limit=st.integers(1, 5),
)
@settings(deadline=None)
def test_under_any_faults_all_is_stored_and_keys_keep_their_order(
    keys: list[str | None], seed: int, batch_rows: int, limit: int
) -> None:
    bench = Bench(
        enableMessageOrdering="true",
        batchRows=str(batch_rows),
        maxInFlightRequests=str(limit),
        linger="10ms",
        flushTimeout="1h",
    )
    rng = random.Random(seed)
    stored: list[Any] = []
    in_flight: list[StartedCall] = []
    bench.add(numbered(len(keys)), keys)
    bench.engine.end_input()
    while not bench.engine.is_idle:
        bench.settle()
        in_flight += bench.take()
        assert len(in_flight) <= limit
        rng.shuffle(in_flight)
        for call in in_flight[: rng.randint(0, len(in_flight))]:
            in_flight.remove(call)
            outcome = rng.random()
            if outcome > 0.3:
                stored.extend(call.request.messages)
            # Below 0.5 the caller sees a failure, whether it was stored or not.
            if outcome > 0.5:
                call.confirm()
            else:
                call.fail("UNAVAILABLE")
        bench.clock.advance(min(bench.engine.seconds_to_next(), 1.0))
    assert {message.data for message in stored} == set(numbered(len(keys)))
    for key in {"a", "b", "c"} & set(keys):
        firsts = dict.fromkeys(int(one.data) for one in stored if one.ordering_key == key)
        assert list(firsts) == sorted(firsts)
