"""The publisher's thread, over real gRPC to a server that misbehaves as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest

from penstock.errors import ConnectError, ResourceError, WireError
from penstock.pubsub.client import PubSubClient
from penstock.pubsub.options import PubSubSinkOptions
from penstock.pubsub.publisher import Publisher
from penstock.pubsub.rows import Rows, group, read_batch
from penstock.retry import Backoff
from tests.support.publish_server import (
    PublishResponse,
    PublishServer,
    confirm,
    fail,
    publish_server,
)

QUICK = Backoff(first_seconds=0.01, longest_seconds=0.05, floor_seconds=0.001)


@pytest.fixture
def server() -> Iterator[PublishServer]:
    with publish_server() as running:
        yield running


class Task:
    """What a task does: a client, a publisher, rows."""

    def __init__(self, server: PublishServer, **raw: str) -> None:
        merged = {"projectId": "p", "topicId": "orders", "endpoint": server.address, **raw}
        self.options = PubSubSinkOptions.parse(merged)

    def __enter__(self) -> Task:
        self.client = PubSubClient(self.options)
        self.publisher = Publisher(self.client, self.options, backoff=QUICK)
        return self

    def __exit__(self, *exc: object) -> None:
        self.publisher.close()
        self.client.close()

    def rows(self, first: int, count: int, keys: int = 0) -> list[Rows]:
        numbers = range(first, first + count)
        columns: dict[str, Any] = {"data": [str(number).encode() for number in numbers]}
        if keys:
            columns["ordering_key"] = [str(number % keys) for number in numbers]
        batch = read_batch(pa.record_batch(columns), self.options.topic, None)
        return list(group(batch, is_ordered=self.options.enable_message_ordering))


def stored_numbers(server: PublishServer) -> list[int]:
    return [int(message.data) for message in server.stored]


def test_flush_returns_after_every_message_is_stored(server: PublishServer) -> None:
    with Task(server) as task:
        for first in range(0, 20_000, 5000):
            task.publisher.submit(task.rows(first, 5000))
        totals = task.publisher.flush()
    assert sorted(stored_numbers(server)) == list(range(20_000))
    assert totals.messages == 20_000
    assert server.metadata["x-goog-request-params"] == "topic=projects%2Fp%2Ftopics%2Forders"
    assert server.metadata["user-agent"].startswith("penstock/")


def test_flush_waits_for_a_slow_confirmation(server: PublishServer) -> None:
    gate = threading.Event()

    def slow(request: Any, context: grpc.ServicerContext) -> Any:
        gate.wait(20)
        return confirm(request, context)

    server.answers = [slow]
    with Task(server) as task:
        task.publisher.submit(task.rows(0, 10))
        timer = threading.Timer(0.3, gate.set)
        timer.start()
        began = time.monotonic()
        task.publisher.flush()
        assert time.monotonic() - began > 0.2
    timer.join()
    assert len(server.stored) == 10


def test_passing_failures_are_ridden_out(server: PublishServer) -> None:
    server.answers = [
        fail(grpc.StatusCode.UNAVAILABLE),
        fail(grpc.StatusCode.RESOURCE_EXHAUSTED),
        fail(grpc.StatusCode.INTERNAL),
    ] * 5
    with Task(server, batchRows="10") as task:
        task.publisher.submit(task.rows(0, 100))
        totals = task.publisher.flush()
    assert sorted(stored_numbers(server)) == list(range(100))
    assert totals.retries == 15


def test_a_lost_response_is_a_duplicate_not_a_loss(server: PublishServer) -> None:
    def lose(request: Any, context: grpc.ServicerContext) -> Any:
        server.stored.extend(request.messages)
        context.abort(grpc.StatusCode.UNAVAILABLE, "after it was stored")

    server.answers = [lose]
    with Task(server, batchRows="10") as task:
        task.publisher.submit(task.rows(0, 30))
        task.publisher.flush()
    assert set(stored_numbers(server)) == set(range(30))
    assert len(server.stored) == 40


def test_a_stalled_service_ends_in_the_flush_timeout(server: PublishServer) -> None:
    server.default = server.stall
    began = time.monotonic()
    with Task(server, flushTimeout="500ms") as task:
        task.publisher.submit(task.rows(0, 10))
        with pytest.raises(ConnectError, match="FLUSH_TIMEOUT"):
            task.publisher.flush()
    assert time.monotonic() - began < 10


def test_a_server_that_is_not_there_ends_in_the_flush_timeout(server: PublishServer) -> None:
    with Task(server, endpoint="127.0.0.1:9", flushTimeout="500ms") as task:
        task.publisher.submit(task.rows(0, 10))
        with pytest.raises(ConnectError, match=r"FLUSH_TIMEOUT.*UNAVAILABLE"):
            task.publisher.flush()


def test_submitting_to_a_stalled_service_does_not_hang_either(server: PublishServer) -> None:
    server.default = server.stall
    with Task(server, flushTimeout="500ms", batchRows="1", maxInFlightRequests="1") as task:
        task.publisher.submit(task.rows(0, 5))
        with pytest.raises(ConnectError, match="FLUSH_TIMEOUT"):
            task.publisher.submit(task.rows(5, 5))


def test_a_failure_that_stays_is_raised_at_once(server: PublishServer) -> None:
    server.answers = [fail(grpc.StatusCode.NOT_FOUND, "Resource not found (resource=orders).")]
    server.default = server.stall
    began = time.monotonic()
    with Task(server, batchRows="1", flushTimeout="30s") as task:
        task.publisher.submit(task.rows(0, 5))
        with pytest.raises(ResourceError, match="gcloud pubsub topics create orders"):
            task.publisher.flush()
    assert time.monotonic() - began < 10


def test_wrong_number_of_ids_fails_the_flush(server: PublishServer) -> None:
    server.default = lambda request, context: PublishResponse(message_ids=["1"])
    with Task(server) as task:
        task.publisher.submit(task.rows(0, 5))
        with pytest.raises(WireError, match="confirmed 1 messages of a request that carried 5"):
            task.publisher.flush()


def test_requests_in_flight_stay_within_the_bound(server: PublishServer) -> None:
    def slow(request: Any, context: grpc.ServicerContext) -> Any:
        server.released.wait(0.005)
        return confirm(request, context)

    server.default = slow
    with Task(server, batchRows="10", maxInFlightRequests="3") as task:
        task.publisher.submit(task.rows(0, 500))
        task.publisher.flush()
    assert server.most_in_flight == 3
    assert len(server.stored) == 500


def test_rows_are_taken_only_as_fast_as_they_are_confirmed(server: PublishServer) -> None:
    server.default = server.stall
    with Task(server, batchRows="1", maxInFlightRequests="2", flushTimeout="60s") as task:
        task.publisher.submit(task.rows(0, 10))
        blocked = threading.Thread(target=lambda: submit_quietly(task), daemon=True)
        blocked.start()
        blocked.join(0.3)
        assert blocked.is_alive()
    blocked.join(10)
    assert not blocked.is_alive()


def submit_quietly(task: Task) -> None:
    try:
        task.publisher.submit(task.rows(10, 10))
    except RuntimeError:
        return


def test_ordering_keys_keep_their_order_across_retries(server: PublishServer) -> None:
    server.answers = [
        fail(grpc.StatusCode.UNAVAILABLE) if number % 3 == 0 else confirm for number in range(60)
    ]
    with Task(server, enableMessageOrdering="true", batchRows="7") as task:
        for first in range(0, 1000, 250):
            task.publisher.submit(task.rows(first, 250, keys=5))
        task.publisher.flush()
    assert sorted(stored_numbers(server)) == list(range(1000))
    for key in "01234":
        numbers = [int(message.data) for message in server.stored if message.ordering_key == key]
        assert numbers == sorted(numbers)
    for request in server.requests:
        assert len({message.ordering_key for message in request.messages}) == 1


def test_closing_in_the_middle_cancels_what_is_in_flight(server: PublishServer) -> None:
    server.default = server.stall
    began = time.monotonic()
    with Task(server) as task:
        task.publisher.submit(task.rows(0, 10))
    assert time.monotonic() - began < 5
    assert not any(thread.name == "penstock-publish" for thread in threading.enumerate())


def test_submitting_after_the_end_is_refused(server: PublishServer) -> None:
    with Task(server) as task:
        task.publisher.flush()
        with pytest.raises(RuntimeError):
            task.publisher.submit(task.rows(0, 1))
