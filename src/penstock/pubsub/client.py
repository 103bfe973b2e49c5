"""Raw gRPC calls to Pub/Sub; runs on the driver and in workers.

The only module of the connector that imports grpc and google.auth. Payloads are bytes both ways:
what is in them is `encoding`'s business. Never retries on its own, never pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import google.auth
import google.auth.exceptions
import google.auth.transport.grpc
import google.auth.transport.requests
import grpc
from google.oauth2 import service_account

from penstock import __version__
from penstock.errors import AccessError, ConnectError
from penstock.pubsub.errors import CallFailed
from penstock.pubsub.options import PubSubConnectionOptions

# Its functions are typed in some releases and not in others.
_auth: Any = google.auth
_service_account: Any = service_account
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
# A response may be somewhat larger than the 10 MB of its messages.
_LARGEST_MESSAGE = 64 * 2**20
_CREDENTIALS_REMEDY = (
    "Set credentialsFile or credentials, or run `gcloud auth application-default login` for the "
    "account that runs Spark; set endpoint for an emulator"
)

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
            raise CallFailed(exc.code().name, exc.details() or "") from exc
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


def _outcome(ended: Any) -> bytes | CallFailed:
    code = ended.code()
    if code is grpc.StatusCode.OK:
        response: bytes = ended.result()
        return response
    return CallFailed(code.name, ended.details() or "")


def _routing(method: Method, resource: str) -> tuple[tuple[str, str], ...]:
    return (("x-goog-request-params", f"{method.routing}={quote(resource, safe='')}"),)


def _open_channel(options: PubSubConnectionOptions) -> Any:
    arguments: list[tuple[str, Any]] = [
        ("grpc.primary_user_agent", f"penstock/{__version__}"),
        ("grpc.max_send_message_length", _LARGEST_MESSAGE),
        ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
        # The publisher retries by itself, and counts what it does.
        ("grpc.enable_retries", 0),
    ]
    if options.is_plaintext:
        return grpc.insecure_channel(options.target, arguments)
    # Finds a connection that a firewall has silently dropped. Not for plain text: Google's own
    # emulator leaves pings unanswered, and would be taken for dead.
    arguments += [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]
    session = _auth.transport.requests.Request()
    credentials = load_credentials(options)
    _refresh(credentials, session)
    plugin = _auth.transport.grpc.AuthMetadataPlugin(credentials, session)
    channel_credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(), grpc.metadata_call_credentials(plugin)
    )
    return grpc.secure_channel(options.target, channel_credentials, arguments)


def load_credentials(options: PubSubConnectionOptions) -> Any:
    """Find the credentials that the options name, or the application's default ones.

    Raises:
        AccessError: there are none, or they cannot be read. Never shows them.
    """
    key = options.key_info
    if key is not None:
        return _load_key(key)
    try:
        if options.credentials_file is None:
            credentials, _ = _auth.default(scopes=_SCOPES)
            return credentials
        path = options.credentials_file
        if not Path(path).is_file():
            raise AccessError(
                "CREDENTIALS",
                f"Credentials file '{path}'",
                "does not exist on this node, or is not readable",
                "Put it there on the driver and on every executor, or use option 'credentials'",
            )
        credentials, _ = _auth.load_credentials_from_file(path, scopes=_SCOPES)
    except (google.auth.exceptions.GoogleAuthError, ValueError) as exc:
        source = options.credentials_file or "application default credentials"
        raise AccessError(
            "CREDENTIALS",
            f"Credentials of {source}",
            f"cannot be used ({type(exc).__name__})",
            _CREDENTIALS_REMEDY,
        ) from None
    return credentials


def _load_key(key: dict[str, Any]) -> Any:
    try:
        if key.get("type") == "service_account":
            made = _service_account.Credentials.from_service_account_info(key, scopes=_SCOPES)
            # The token is then signed here: one round trip less for every task.
            return made.with_always_use_jwt_access(always_use_jwt_access=True)
        credentials, _ = _auth.load_credentials_from_dict(key, scopes=_SCOPES)
    except (google.auth.exceptions.GoogleAuthError, ValueError, TypeError) as exc:
        # Not chained: the cause may quote the key.
        raise AccessError(
            "CREDENTIALS",
            "Inline credentials",
            f"cannot be used ({type(exc).__name__}): a field is missing, or the key is not PEM",
            "Pass the key file's content as it was downloaded",
        ) from None
    return credentials


def _refresh(credentials: Any, session: Any) -> None:
    """Get the first token now, so that a wrong key is an error of its own, not a failed call."""
    try:
        if not credentials.valid:
            credentials.refresh(session)
    except google.auth.exceptions.TransportError as exc:
        raise ConnectError(
            "TOKEN",
            "Access token for Pub/Sub",
            f"the token service cannot be reached ({type(exc).__name__})",
            "Check that this node reaches oauth2.googleapis.com or its metadata server",
        ) from None
    except google.auth.exceptions.GoogleAuthError as exc:
        raise AccessError(
            "CREDENTIALS",
            "Access token for Pub/Sub",
            f"the credentials were refused ({type(exc).__name__})",
            _CREDENTIALS_REMEDY,
        ) from None
