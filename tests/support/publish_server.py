"""A gRPC server that records Publish calls and answers them as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.pubsub_v1 import types

PublishRequest = types.PublishRequest.pb()
PublishResponse = types.PublishResponse.pb()

Answer = Callable[[Any, grpc.ServicerContext], Any]


def confirm(request: Any, context: grpc.ServicerContext) -> Any:
    """Answer as the service does when all is well."""
    return PublishResponse(message_ids=[str(number) for number in range(len(request.messages))])


def fail(code: grpc.StatusCode, details: str = "told to") -> Answer:
    """Make an answer that is an error."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        context.abort(code, details)

    return answer


class PublishServer:
    """What the service saw. `answers` are used up one by one, then `default` answers."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.default: Answer = confirm
        self.stored: list[Any] = []
        self.requests: list[Any] = []
        self.most_in_flight = 0
        self.metadata: dict[str, str] = {}
        self.released = threading.Event()
        self._in_flight = 0
        self._lock = threading.Lock()
        self.address = ""

    def stall(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer nothing until the test is over."""
        self.released.wait(60)
        context.abort(grpc.StatusCode.CANCELLED, "the test is over")

    def publish(self, payload: bytes, context: grpc.ServicerContext) -> bytes:
        request = PublishRequest.FromString(payload)
        with self._lock:
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            self.metadata = dict(context.invocation_metadata())
            answer = self.answers.pop(0) if self.answers else self.default
        try:
            response = answer(request, context)
        finally:
            with self._lock:
                self._in_flight -= 1
        with self._lock:
            self.stored.extend(request.messages)
        return bytes(response.SerializeToString())


@contextmanager
def publish_server() -> Iterator[PublishServer]:
    """Run one on a free loopback port."""
    state = PublishServer()
    executor = ThreadPoolExecutor(32)
    server = grpc.server(executor, options=[("grpc.max_receive_message_length", -1)])
    handler = grpc.method_handlers_generic_handler(
        "google.pubsub.v1.Publisher",
        {"Publish": grpc.unary_unary_rpc_method_handler(state.publish)},
    )
    server.add_generic_rpc_handlers((handler,))
    state.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield state
    finally:
        state.released.set()
        server.stop(grace=None).wait()
        executor.shutdown()
