"""A `Client` without a network: the test sees each call and decides how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.pubsub_v1 import types

from penstock.pubsub.client import Method
from penstock.pubsub.errors import CallFailed

PublishRequest = types.PublishRequest.pb()
PublishResponse = types.PublishResponse.pb()


@dataclass
class StartedCall:
    """A Publish call in flight."""

    resource: str
    request: Any
    timeout_seconds: float
    done: Callable[[bytes | CallFailed], None]
    is_cancelled: bool = False

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.request.messages]

    def confirm(self, count: int | None = None) -> None:
        number = len(self.request.messages) if count is None else count
        ids = [str(position) for position in range(number)]
        self.done(PublishResponse(message_ids=ids).SerializeToString())

    def fail(self, code: str, details: str = "told to") -> None:
        self.done(CallFailed(code, details))

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class ScriptedClient:
    """`answers` are functions from a call's (path, resource, payload, timeout) to bytes."""

    answers: dict[str, Callable[..., bytes]] = field(default_factory=dict)
    started: list[StartedCall] = field(default_factory=list)
    calls: list[tuple[str, str, bytes, float]] = field(default_factory=list)
    is_closed: bool = False

    def call(self, method: Method, resource: str, payload: bytes, timeout_seconds: float) -> bytes:
        name = method.path.rsplit("/", 1)[1]
        self.calls.append((name, resource, payload, timeout_seconds))
        return self.answers[name](payload, timeout_seconds)

    def start(
        self,
        method: Method,
        resource: str,
        payload: bytes,
        timeout_seconds: float,
        done: Callable[[bytes | CallFailed], None],
    ) -> Callable[[], Any]:
        request = PublishRequest.FromString(payload)
        call = StartedCall(resource, request, timeout_seconds, done)
        self.started.append(call)
        return call.cancel

    def close(self) -> None:
        self.is_closed = True

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]
