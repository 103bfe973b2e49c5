"""The REST endpoints of Snowpipe Streaming, as the official SDK asks for them.

Runs in the emulator. Names come percent-encoded in the path, and may hold any character, a slash
too.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from penstock.emulator.snowflake import ingest
from penstock.emulator.snowflake.channels import Channels
from penstock.emulator.snowflake.database import Database
from penstock.emulator.snowflake.errors import JWT_INVALID, LoginRefusedError, RefusedError
from penstock.emulator.snowflake.tables import target_of
from penstock.emulator.snowflake.users import Users

_LARGEST_BODY_BYTES = 64 << 20
_PIPE_INFO_SECONDS = 3600
# The SDK has ideas of its own about when it leaves the row mode for files on a stage, which are
# not served: see ROW_MODE_PROPERTIES.
_PARAMETERS = {
    "max_client_lag_seconds": 1,
    "rowset_flush_threshold_kb": 65_535,
    "max_buffered_kb_for_rowset_mode": 65_535,
    "rowset_threshold_lookback_seconds": 1,
    "rowset_threshold_ewma_weight": 1,
    "target_file_size_compressed_mb": 1_024,
    "cpu_throttle_high_watermark_percent": 100,
    "cpu_throttle_low_watermark_percent": 99,
    "mem_throttle_high_watermark_percent": 95,
    "mem_throttle_low_watermark_percent": 90,
}


# What a client has to set so that large bursts and 429s do not make it write files.
ROW_MODE_PROPERTIES = {
    "max_buffered_kb_for_rowset_mode": "1000000",
    "max_rowset_payload_size_mb": "64",
    "num_failure_before_forcing_file_mode": "255",
}
_PIPE = "v2/streaming/databases/*/schemas/*/pipes/*"
_DATA = "v2/streaming/data/databases/*/schemas/*/pipes/*"
# Method, path with * for names, and the name of the endpoint.
_ROUTES = [
    (method, path.split("/"), name)
    for method, path, name in (
        ("GET", "v2/streaming/hostname", "hostname"),
        ("POST", "oauth/token", "token"),
        ("POST", "telemetry/send/sessionless", "telemetry"),
        ("POST", f"{_PIPE}:pipe-info", "pipe_info"),
        ("POST", f"{_PIPE}:bulk-channel-status", "channel_status"),
        ("PUT", f"{_PIPE}/channels/*", "open_channel"),
        ("DELETE", f"{_PIPE}/channels/*", "drop_channel"),
        ("POST", f"{_DATA}/channels/*/rows", "append_rows"),
    )
]


class Streaming:
    """The endpoints; each method serves one, named as faults name it."""

    def __init__(self, database: Database, users: Users, channels: Channels) -> None:
        self._database = database
        self._users = users
        self._channels = channels

    async def hostname(self, request: Request, names: list[str]) -> Response:  # noqa: ARG002
        """Say under which name the endpoints are; the SDK appends its own port."""
        self._check_jwt(request)
        return PlainTextResponse(request.url.hostname or "localhost")

    async def token(self, request: Request, names: list[str]) -> Response:  # noqa: ARG002
        """Exchange the JWT of a key pair for a scoped token."""
        user = self._check_jwt(request)
        return PlainTextResponse(self._users.issue_token(user))

    async def telemetry(self, request: Request, names: list[str]) -> Response:  # noqa: ARG002
        """Take the SDK's own figures, and forget them."""
        return JSONResponse(
            {"data": "Log Received", "code": None, "message": None, "success": True}
        )

    async def pipe_info(self, request: Request, names: list[str]) -> Response:
        """Describe a pipe: where files would go, and how the SDK shall behave."""
        self._check_token(request)
        await run_in_threadpool(target_of, self._database, *_upper(names))
        return JSONResponse(_pipe_info())

    async def open_channel(self, request: Request, names: list[str]) -> Response:
        """Open a channel, new or again."""
        self._check_token(request)
        body = await _json_body(request)
        offset_token = body.get("offset_token")
        if offset_token is not None and not isinstance(offset_token, str):
            raise RefusedError(400, "INVALID_REQUEST", "offset_token is not a text")
        token, status = await run_in_threadpool(
            self._channels.open,
            _key(names),
            offset_token,
            fail_on_uncommitted=bool(body.get("fail_on_uncommitted_rows", False)),
        )
        status["channel_name"] = names[3]
        return JSONResponse({"next_continuation_token": token, "channel_status": status})

    async def append_rows(self, request: Request, names: list[str]) -> Response:
        """Take JSON lines for a channel."""
        self._check_token(request)
        query = request.query_params
        body = await _body(request)
        encoding = request.headers.get("Content-Encoding", "")

        def work() -> str:
            return self._channels.append(
                _key(names),
                query.get("continuationToken", ""),
                query.get("requestId", ""),
                query.get("endOffsetToken") or query.get("offsetToken") or None,
                ingest.decode(body, encoding),
            )

        return JSONResponse({"next_continuation_token": await run_in_threadpool(work)})

    async def channel_status(self, request: Request, names: list[str]) -> Response:
        """Give the status of several channels."""
        self._check_token(request)
        body = await _json_body(request)
        wanted = body.get("channel_names")
        if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
            raise RefusedError(400, "INVALID_REQUEST", "channel_names is not a list of texts")
        answer = await run_in_threadpool(self._channels.statuses, _upper(names), wanted)
        return JSONResponse({"channel_statuses": answer})

    async def drop_channel(self, request: Request, names: list[str]) -> Response:
        """Forget a channel."""
        self._check_token(request)
        committed = await run_in_threadpool(self._channels.drop, _key(names))
        return JSONResponse({"last_committed_offset_token": committed})

    def _check_jwt(self, request: Request) -> str:
        try:
            return self._users.check_jwt(_bearer(request))
        except LoginRefusedError:
            raise RefusedError(401, JWT_INVALID, "JWT token is invalid.") from None

    def _check_token(self, request: Request) -> str:
        """The SDK brings the scoped token; others may bring the JWT itself."""
        bearer = _bearer(request)
        kind = request.headers.get("X-Snowflake-Authorization-Token-Type", "OAUTH")
        if kind.upper() == "KEYPAIR_JWT":
            return self._check_jwt(request)
        try:
            return self._users.check_token(bearer)
        except LoginRefusedError:
            raise RefusedError(401, "390303", "Invalid OAuth access token.") from None


def route(method: str, raw_path: bytes) -> tuple[str, list[str]] | None:
    """Give the name of the endpoint and the names in its path, or None if there is none."""
    try:
        path = raw_path.split(b"?", 1)[0].decode("ascii")
        parts = [unquote(part, errors="strict") for part in path.split("/")[1:]]
    except UnicodeDecodeError:
        return None
    for known, pattern, name in _ROUTES:
        ending = pattern[-1][1:] if pattern[-1].startswith("*:") else ""
        if method != known or len(parts) != len(pattern) or not parts[-1].endswith(ending):
            continue
        pairs = list(zip(pattern, parts, strict=True))
        if all(want.startswith("*") or want == part for want, part in pairs):
            names = [part for want, part in pairs if want.startswith("*")]
            return name, [*names[:-1], names[-1].removesuffix(ending)] if names else []
    return None


def _upper(names: list[str]) -> tuple[str, str, str]:
    database, schema, pipe = (name.upper() for name in names[:3])
    return database, schema, pipe


def _key(names: list[str]) -> tuple[str, str, str, str]:
    return (*_upper(names), names[3].upper())


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_BODY_BYTES:
            raise RefusedError(413, "PAYLOAD_TOO_LARGE", "the body is too large")
    return bytes(body)


async def _json_body(request: Request) -> dict[str, Any]:
    body = ingest.decode(await _body(request), request.headers.get("Content-Encoding", ""))
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise RefusedError(400, "INVALID_REQUEST", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(400, "INVALID_REQUEST", "the body is not a JSON object")
    return value


def _pipe_info() -> dict[str, Any]:
    stage = {
        "expiry_time_ms": int((time.time() + _PIPE_INFO_SECONDS) * 1000),
        "location_type": "S3",
        "location": "penstock-emulator/",
        "use_s3_regional_url": False,
        "region": "us-east-1",
        "storage_endpoint": "localhost",
        "storage_account": "",
        "bucket_name": "penstock-emulator",
        "path_prefix": "",
        "path": "",
        "presigned_url": None,
        "is_client_side_encrypted": True,
        "creds": {"AWS_KEY_ID": "none", "AWS_SECRET_KEY": "none", "AWS_TOKEN": "none"},
        "parameters": _PARAMETERS,
    }
    return {
        "rowset_stage_location": stage,
        "durable_stage_location": stage,
        "encryption_info": {
            "pipe_key": base64.b64encode(bytes(16)).decode(),
            "pipe_key_id": 1,
            "diversifier": "",
        },
        "parameter_overrides": {},
        "binary_input_format": "HEX",
    }
