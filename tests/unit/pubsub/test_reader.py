"""The batch read without Spark: it takes what it may, and gives back everything."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from google.pubsub_v1 import types
from pyspark.sql.datasource import EqualTo, IsNotNull
from pyspark.sql.types import StringType, StructField, StructType

from penstock._core.clock import ManualClock
from penstock.errors import ConnectError, ResourceError, SchemaError
from penstock.pubsub.encoding import ROW_SCHEMA
from penstock.pubsub.errors import CallFailed
from penstock.pubsub.options import PubSubReadOptions
from penstock.pubsub.peek import Peek
from penstock.pubsub.reader import PubSubBatchReader, PubSubInputPartition, PubSubPushdownReader
from penstock.retry import Backoff
from tests.support.scripted_client import ScriptedClient

PullRequest = types.PullRequest.pb()
PullResponse = types.PullResponse.pb()
ModifyAckDeadlineRequest = types.ModifyAckDeadlineRequest.pb()
SPARK_SCHEMA = StructType([StructField(name, StringType()) for name in ROW_SCHEMA.names])


def read_options(**raw: str) -> PubSubReadOptions:
    merged = {"projectId": "p", "subscriptionId": "sub", "endpoint": "127.0.0.1:9", **raw}
    return PubSubReadOptions.parse(merged)


class Service:
    """A subscription with messages: `script` overrides the answers to Pull, one by one."""

    def __init__(self, message_count: int = 0, per_pull: int = 1000) -> None:
        self.clock = ManualClock()
        self.left = list(range(message_count))
        self.per_pull = per_pull
        self.script: list[Callable[[], bytes]] = []
        self.pulls: list[tuple[int, float]] = []
        self.deadlines: dict[str, list[int]] = {}
        self.modify_sizes: list[int] = []
        self.modify_failures: list[str] = []
        self.leased = 0
        self.client = ScriptedClient(answers={"Pull": self.pull, "ModifyAckDeadline": self.modify})

    def response(self, *ids: int) -> bytes:
        response = PullResponse()
        for number in ids:
            self.leased += 1
            received = response.received_messages.add(ack_id=f"lease-{self.leased}-of-{number}")
            received.message.message_id = str(number)
            received.message.data = b"x" * 100
        return bytes(response.SerializeToString())

    def pull(self, payload: bytes, timeout: float) -> bytes:
        wanted = PullRequest.FromString(payload).max_messages
        self.pulls.append((wanted, timeout))
        if self.script:
            return self.script.pop(0)()
        ids, self.left = self.left[: min(wanted, self.per_pull)], self.left[self.per_pull :]
        if not ids:
            self.clock.advance(timeout)
            raise CallFailed("DEADLINE_EXCEEDED", "nothing came")
        return self.response(*ids)

    def modify(self, payload: bytes, timeout: float) -> bytes:
        self.modify_sizes.append(len(payload))
        if self.modify_failures:
            raise CallFailed(self.modify_failures.pop(0), "told to")
        request = ModifyAckDeadlineRequest.FromString(payload)
        assert request.subscription == "projects/p/subscriptions/sub"
        for ack_id in request.ack_ids:
            self.deadlines.setdefault(ack_id, []).append(request.ack_deadline_seconds)
        return b""

    def fail(self, code: str) -> Callable[[], bytes]:
        def answer() -> bytes:
            raise CallFailed(code, "told to")

        return answer

    def peek(self, ack_deadline_seconds: int = 600, **raw: str) -> list[str]:
        peek = Peek(
            self.client,
            read_options(**raw),
            ack_deadline_seconds,
            self.clock,
            Backoff(longest_seconds=0.1),
        )
        batches = peek.collect()
        return [number for batch in batches for number in batch.column("message_id").to_pylist()]

    def assert_all_handed_back(self) -> None:
        assert len(self.deadlines) == self.leased
        assert all(deadlines[-1] == 0 for deadlines in self.deadlines.values())
        assert "Acknowledge" not in self.client.names()


def test_everything_is_read_and_handed_back() -> None:
    service = Service(25, per_pull=10)
    assert service.peek() == [str(number) for number in range(25)]
    service.assert_all_handed_back()


def test_no_more_than_max_messages_are_leased() -> None:
    service = Service(5000)
    assert len(service.peek(maxMessages="1500")) == 1500
    assert service.leased == 1500
    assert [wanted for wanted, _ in service.pulls] == [1000, 500]
    service.assert_all_handed_back()


def test_collecting_stops_at_max_bytes() -> None:
    service = Service(5000, per_pull=10)
    assert len(service.peek(maxBytes="2500")) < 50
    service.assert_all_handed_back()


def test_an_empty_subscription_is_watched_for_the_whole_period() -> None:
    service = Service(0)
    began = service.clock.monotonic()
    assert service.peek(maxFetchPeriod="7s") == []
    assert service.clock.monotonic() - began == pytest.approx(7.0, abs=0.2)


def test_after_the_first_messages_a_short_silence_is_the_end() -> None:
    service = Service(3)
    began = service.clock.monotonic()
    assert len(service.peek(maxFetchPeriod="300s")) == 3
    assert service.clock.monotonic() - began == pytest.approx(2.0)


def test_an_empty_answer_after_messages_is_the_end() -> None:
    service = Service()
    service.script = [lambda: service.response(1, 2), lambda: b""]
    assert service.peek() == ["1", "2"]
    assert len(service.pulls) == 2


def test_empty_answers_before_any_message_are_not_the_end_and_not_a_tight_loop() -> None:
    service = Service()
    service.script = [lambda: b""] * 5 + [lambda: service.response(1)]
    began = service.clock.monotonic()
    assert service.peek() == ["1"]
    assert service.clock.monotonic() - began > 5 * 0.01


def test_a_passing_failure_of_a_pull_is_ridden_out() -> None:
    service = Service(3)
    service.script = [service.fail("UNAVAILABLE"), service.fail("RESOURCE_EXHAUSTED")]
    assert len(service.peek()) == 3
    service.assert_all_handed_back()


def test_a_service_that_never_answers_is_an_error() -> None:
    service = Service()
    service.script = [service.fail("UNAVAILABLE")] * 10_000
    with pytest.raises(ConnectError, match="projects/p/subscriptions/sub"):
        service.peek()


def test_a_refused_pull_is_an_error_and_what_was_leased_is_handed_back() -> None:
    service = Service()
    service.script = [lambda: service.response(1, 2), service.fail("NOT_FOUND")]
    with pytest.raises(ResourceError, match="subscriptions create sub"):
        service.peek()
    service.assert_all_handed_back()


def test_a_malformed_answer_is_an_error_and_what_was_leased_is_handed_back() -> None:
    service = Service()
    service.script = [lambda: service.response(1, 2), lambda: b"\xff"]
    with pytest.raises(Exception, match="PENSTOCK_WIRE"):
        service.peek()
    service.assert_all_handed_back()


def test_leases_are_prolonged_to_the_end_of_a_long_period() -> None:
    service = Service(3)
    service.peek(ack_deadline_seconds=10, maxFetchPeriod="300s")
    assert list(service.deadlines.values()) == [[320, 0]] * 3


def test_leases_that_are_long_enough_are_left_alone() -> None:
    service = Service(3)
    service.peek(ack_deadline_seconds=60, maxFetchPeriod="10s")
    assert list(service.deadlines.values()) == [[0]] * 3


def test_a_message_that_comes_twice_is_one_row_and_both_leases_are_handed_back() -> None:
    service = Service()
    service.script = [lambda: service.response(1, 2, 2), lambda: service.response(2, 3)]
    assert service.peek() == ["1", "2", "3"]
    assert service.leased == 5
    service.assert_all_handed_back()


def test_handing_back_is_retried() -> None:
    service = Service(3)
    service.modify_failures = ["UNAVAILABLE", "INTERNAL"]
    assert len(service.peek()) == 3
    service.assert_all_handed_back()


def test_a_failure_to_hand_back_costs_a_warning_not_the_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service(3)
    service.modify_failures = ["PERMISSION_DENIED"]
    assert len(service.peek()) == 3
    assert "they end by themselves" in caplog.text


def test_requests_that_hand_back_stay_below_the_services_limit() -> None:
    service = Service()
    response = PullResponse()
    for number in range(6000):
        response.received_messages.add(ack_id=f"{number:0>194}").message.message_id = str(number)
    service.leased = 6000
    service.script = [response.SerializeToString]
    service.peek(maxMessages="6000")
    assert len(service.modify_sizes) == 3
    assert max(service.modify_sizes) < 524_288
    service.assert_all_handed_back()


def reader_of(service: Service, **raw: str) -> PubSubPushdownReader:
    return PubSubPushdownReader(read_options(**raw), SPARK_SCHEMA, lambda options: service.client)


def test_rows_leave_only_after_everything_was_handed_back() -> None:
    service = Service(3)
    rows = reader_of(service, maxMessages="3").read(PubSubInputPartition(600))
    first = next(rows)
    # Spark may never ask for more: a limit, a failure, a killed worker.
    service.assert_all_handed_back()
    assert service.client.is_closed
    assert first.schema.equals(ROW_SCHEMA, check_metadata=True)


def test_pushed_filters_drop_rows_before_spark_sees_them() -> None:
    service = Service(5)
    reader = reader_of(service, maxMessages="5")
    left = reader.pushFilters([EqualTo(("message_id",), "3"), EqualTo(("data",), b"x")])
    assert list(left) == [EqualTo(("data",), b"x")]
    batches = list(reader.read(PubSubInputPartition(600)))
    assert [batch.column("message_id").to_pylist() for batch in batches] == [["3"]]
    service.assert_all_handed_back()


def test_the_reader_and_its_filters_are_picklable() -> None:
    reader = PubSubPushdownReader(read_options(), SPARK_SCHEMA)
    reader.pushFilters([IsNotNull(("data",))])
    copied: Any = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own bytes
    assert copied._filters == reader._filters


def test_a_schema_of_the_users_own_is_refused() -> None:
    with pytest.raises(SchemaError, match="always has the columns"):
        PubSubBatchReader(read_options(), StructType([StructField("data", StringType())]))


def test_batches_without_rows_are_not_passed_on() -> None:
    service = Service(5)
    reader = reader_of(service, maxMessages="5")
    reader.pushFilters([EqualTo(("message_id",), "none")])
    assert list(reader.read(PubSubInputPartition(600))) == []
