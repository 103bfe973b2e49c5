"""Raw gRPC calls to Pub/Sub; runs on the driver and in workers.

The only module of the connector that imports grpc. Payloads are bytes both ways: what is in them
is `encoding`'s business. Never retries on its own, never pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import grpc
import grpc.aio

from penstock import __version__
from penstock.pubsub.errors import CallFailed
from penstock.pubsub.options import PubSubConnectionOptions

# A response may be somewhat larger than the 10 MB of its messages.
_LARGEST_MESSAGE = 64 * 2**20

Done = Callable[[bytes | CallFailed], None]


@dataclass(frozen=True)
class Method:
    """One method of the API, and the request field that routes it."""

    path: str
    routing: str


PUBLISH = Method("/google.pubsub.v1.Publisher/Publish", "topic")
GET_TOPIC = Method("/google.pubsub.v1.Publisher/GetTopic", "topic")
PULL = Method("/google.pubsub.v1.Subscriber/Pull", "subscription")
GET_SUBSCRIPTION = Method("/google.pubsub.v1.Subscriber/GetSubscription", "subscription")
ACKNOWLEDGE = Method("/google.pubsub.v1.Subscriber/Acknowledge", "subscription")
CREATE_SUBSCRIPTION = Method("/google.pubsub.v1.Subscriber/CreateSubscription", "name")
DELETE_SUBSCRIPTION = Method("/google.pubsub.v1.Subscriber/DeleteSubscription", "subscription")
SEEK = Method("/google.pubsub.v1.Subscriber/Seek", "subscription")
STREAMING_PULL = Method("/google.pubsub.v1.Subscriber/StreamingPull", "subscription")
MODIFY_ACK_DEADLINE = Method("/google.pubsub.v1.Subscriber/ModifyAckDeadline", "subscription")
TEST_IAM_PERMISSIONS = Method("/google.iam.v1.IAMPolicy/TestIamPermissions", "resource")


class Client(Protocol):
    """What readers and writers need of the service."""

    def call(self, method: Method, resource: str, payload: bytes, timeout_seconds: float) -> bytes:
        """Make one call and wait for its response.

        Raises:
            CallFailed: it ended with another status than OK.
        """
        ...

    def start(
        self, method: Method, resource: str, payload: bytes, timeout_seconds: float, done: Done
    ) -> Callable[[], Any]:
        """Begin a call; `done` runs in another thread with its outcome. Gives its cancel."""
        ...

    def close(self) -> None:
        """End every call and the connection."""
        ...


class PubSubClient:
    """A connection to the service. Made where it is used: it holds sockets and threads."""

    def __init__(self, options: PubSubConnectionOptions) -> None:
        self._channel = _open_channel(options)
        self._calls: dict[Method, Any] = {}

    def call(self, method: Method, resource: str, payload: bytes, timeout_seconds: float) -> bytes:
        """See `Client`."""
        try:
            response: bytes = self._callable(method)(
                payload, timeout=timeout_seconds, metadata=_routing(method, resource)
            )
        except grpc.RpcError as exc:
            raise CallFailed(exc.code().name, exc.details() or "", _reasons(exc)) from exc
        return response

    def start(
        self, method: Method, resource: str, payload: bytes, timeout_seconds: float, done: Done
    ) -> Callable[[], Any]:
        """See `Client`."""
        future = self._callable(method).future(
            payload, timeout=timeout_seconds, metadata=_routing(method, resource)
        )
        future.add_done_callback(lambda ended: done(_outcome(ended)))
        cancel: Callable[[], Any] = future.cancel
        return cancel

    def close(self) -> None:
        """See `Client`."""
        self._channel.close()

    def _callable(self, method: Method) -> Any:
        if method not in self._calls:
            # No (de)serialisers: grpc then hands bytes through.
            self._calls[method] = self._channel.unary_unary(method.path)
        return self._calls[method]


class StreamConnection:
    """A connection for StreamingPull, on an event loop: made and used inside of one.

    One loop carries many streams at less cost than a thread for each.
    """

    def __init__(self, options: PubSubConnectionOptions) -> None:
        self._channel = _open_channel(options, grpc.aio)

    def open(self, subscription: str) -> PullStream:
        """Begin a StreamingPull."""
        begin = self._channel.stream_stream(STREAMING_PULL.path)
        return PullStream(begin(metadata=_routing(STREAMING_PULL, subscription)))

    async def close(self) -> None:
        """End every stream and the connection."""
        await self._channel.close()


class PullStream:
    """One StreamingPull."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._is_cancelled = False

    async def send(self, payload: bytes) -> None:
        """Send a request; on a stream that has ended nothing happens, reading tells how it did."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._call.write(payload)

    async def read(self) -> bytes | None:
        """Wait for a response; None at the end of the stream.

        Raises:
            CallFailed: the stream has ended with an error.
        """
        try:
            response: Any = await self._call.read()
        except grpc.RpcError as exc:
            raise CallFailed(exc.code().name, exc.details() or "") from exc
        except asyncio.CancelledError:
            if self._is_cancelled:
                return None
            raise
        return None if response is grpc.aio.EOF else response

    async def close_sending(self) -> None:
        """Tell the service that no more requests come, upon which it ends the stream."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def cancel(self) -> None:
        """End the stream at once."""
        self._is_cancelled = True
        self._call.cancel()


def _outcome(ended: Any) -> bytes | CallFailed:
    code = ended.code()
    if code is grpc.StatusCode.OK:
        response: bytes = ended.result()
        return response
    return CallFailed(code.name, ended.details() or "")


def _reasons(error: Any) -> dict[str, str]:
    """Read why single ack ids failed; exactly-once subscriptions tell in the status' details."""
    payload = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if payload is None:
        return {}
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    reasons: dict[str, str] = {}
    try:
        for detail in status_pb2.Status.FromString(payload).details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                reasons.update(info.metadata)
    except DecodeError:
        return {}
    return {
        ack_id: reason
        for ack_id, reason in reasons.items()
        if reason.startswith(("TRANSIENT_FAILURE_", "PERMANENT_FAILURE_"))
    }


def _routing(method: Method, resource: str) -> tuple[tuple[str, str], ...]:
    return (("x-goog-request-params", f"{method.routing}={quote(resource, safe='')}"),)


def _open_channel(options: PubSubConnectionOptions, kind: Any = grpc) -> Any:
    arguments: list[tuple[str, Any]] = [
        ("grpc.primary_user_agent", f"penstock/{__version__}"),
        ("grpc.max_send_message_length", _LARGEST_MESSAGE),
        ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
        # The publisher retries by itself, and counts what it does.
        ("grpc.enable_retries", 0),
    ]
    if options.is_plaintext:
        return kind.insecure_channel(options.target, arguments)
    # Finds a connection that a firewall has silently dropped. Not for plain text: Google's own
    # emulator leaves pings unanswered, and would be taken for dead.
    arguments += [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]
    # Here, because plain text needs none of it and it costs a worker a quarter of a second.
    from penstock.pubsub.credentials import token_plugin

    channel_credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(), grpc.metadata_call_credentials(token_plugin(options))
    )
    return kind.secure_channel(options.target, channel_credentials, arguments)
