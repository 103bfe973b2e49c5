"""Google credentials for a connection: found, read, and tried at once; runs wherever one is made.

The only module of the connector that imports google.auth. What is wrong with credentials is an
`AccessError` before any call. Never shows a key, not even as the cause of an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google.auth
import google.auth.exceptions
import google.auth.transport.grpc
import google.auth.transport.requests
from google.auth import identity_pool
from google.oauth2 import credentials as user_credentials
from google.oauth2 import service_account

from penstock.errors import AccessError, ConnectError
from penstock.pubsub.options import PubSubConnectionOptions

# Its functions are typed in some releases and not in others.
_auth: Any = google.auth
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
_CREDENTIALS_REMEDY = (
    "Set credentialsFile or credentials, or run `gcloud auth application-default login` for the "
    "account that runs Spark; set endpoint for an emulator"
)


def token_plugin(options: PubSubConnectionOptions) -> Any:
    """Give what adds a token to each call of a channel; the first token is fetched here.

    Raises:
        PenstockError: the credentials cannot be used, or no token can be had.
    """
    session = _auth.transport.requests.Request()
    credentials = load_credentials(options)
    _refresh(credentials, session)
    return _auth.transport.grpc.AuthMetadataPlugin(credentials, session)


def load_credentials(options: PubSubConnectionOptions) -> Any:
    """Find the credentials that the options name, or the application's default ones.

    Raises:
        AccessError: there are none, or they cannot be read. Never shows them.
    """
    if (info := options.key_info) is not None:
        return _make_credentials(info, "Inline credentials")
    if options.credentials_file is not None:
        return _make_credentials(
            _read_file(options.credentials_file), f"Credentials file '{options.credentials_file}'"
        )
    try:
        credentials, _ = _auth.default(scopes=_SCOPES)
    except google.auth.exceptions.GoogleAuthError as exc:
        raise AccessError(
            "CREDENTIALS",
            "Application default credentials",
            f"are not there, or cannot be used ({type(exc).__name__})",
            _CREDENTIALS_REMEDY,
        ) from None
    return credentials


def _read_file(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as exc:
        # Not chained: a parser may quote what it read.
        raise AccessError(
            "CREDENTIALS",
            f"Credentials file '{path}'",
            f"does not exist on this node, or is not a readable JSON file ({type(exc).__name__})",
            "Put it there on the driver and on every executor, or use option 'credentials'",
        ) from None


def _service_account(info: dict[str, Any]) -> Any:
    kind: Any = service_account.Credentials
    made = kind.from_service_account_info(info, scopes=_SCOPES)
    # The token is then signed here: one round trip less for every task.
    return made.with_always_use_jwt_access(always_use_jwt_access=True)


def _authorized_user(info: dict[str, Any]) -> Any:
    kind: Any = user_credentials.Credentials
    return kind.from_authorized_user_info(info, scopes=_SCOPES)


def _external_account(info: dict[str, Any]) -> Any:
    kind: Any = identity_pool.Credentials
    return kind.from_info(info, scopes=_SCOPES)


# One loader for each kind, as google-auth advises: a generic one would follow whatever is inside.
_LOADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "service_account": _service_account,
    "authorized_user": _authorized_user,
    "external_account": _external_account,
}


def _make_credentials(info: Any, subject: str) -> Any:
    kind = info.get("type") if isinstance(info, dict) else None
    if kind not in _LOADERS:
        raise AccessError(
            "CREDENTIALS",
            subject,
            f"the JSON is not of a type that can be used: {', '.join(_LOADERS)}",
            "Pass such a key, or none to use application default credentials",
        )
    try:
        return _LOADERS[kind](info)
    except (google.auth.exceptions.GoogleAuthError, ValueError, TypeError) as exc:
        # Not chained: the cause may quote the key.
        raise AccessError(
            "CREDENTIALS",
            subject,
            f"cannot be used ({type(exc).__name__}): a field is missing, or the key is not PEM",
            "Pass the key file's content as it was downloaded",
        ) from None


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
