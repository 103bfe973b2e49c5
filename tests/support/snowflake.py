"""A Snowflake emulator with the official clients, and a bare one for what they would never send."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.emulator.snowflake.users import fingerprint_of
from penstock.testing import SnowflakeEmulator

# The SDK writes its log to standard output; read when it is first used.
os.environ.setdefault("SS_LOG_LEVEL", "error")

_NUMBERS = itertools.count(1)


class Lake:
    """One emulator, shared by the tests of a module; each test makes tables of its own."""

    def __init__(self, emulator: SnowflakeEmulator) -> None:
        self.emulator = emulator

    def run(self, statement: str, *parameters: Any) -> list[Any]:
        with self.emulator.connect() as connection, connection.cursor() as cursor:
            return list(cursor.execute(statement, parameters or None).fetchall())

    def table(self, columns: str, options: str = "") -> str:
        name = f"T{next(_NUMBERS)}"
        self.run(f"CREATE TABLE {name} ({columns}) {options}")
        return name

    @contextmanager
    def client(self, table: str, **properties: Any) -> Iterator[Any]:
        """Open the official client on a table's own pipe."""
        from snowflake.ingest.streaming import StreamingIngestClient

        emulator = self.emulator
        client = StreamingIngestClient.from_table(
            f"client {next(_NUMBERS)}",
            emulator.database,
            emulator.schema,
            table,
            properties={**emulator.client_properties(), **properties},
        )
        try:
            yield client
        finally:
            client.close(wait_for_flush=False)

    @contextmanager
    def channel(self, table: str, name: str = "channel") -> Iterator[Any]:
        with self.client(table) as client:
            yield client.open_channel(name)[0]

    def status(self, name: str) -> dict[str, Any]:
        return self.emulator.channels()[name.upper()]

    def bare(self, table: str) -> BareClient:
        return BareClient(self.emulator, table)


def append(channel: Any, rows: list[dict[str, Any]], token: str, *, seconds: float = 60) -> None:
    """Append rows, and wait until they are committed."""
    channel.append_rows(rows, token, token)
    channel.wait_for_commit(lambda seen: seen is not None and seen >= token, seconds)


def new_key() -> tuple[str, str]:
    """Make a key pair: the private key and the public one, as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


def der(private_key: str) -> bytes:
    """Give a private key as the connector takes it."""
    key = serialization.load_pem_private_key(private_key.encode(), None)
    return key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def make_jwt(private_key: str, **changes: Any) -> str:
    """Make the JWT of a key pair, with claims as they should be or changed."""
    key = serialization.load_pem_private_key(private_key.encode(), None)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    bare = "".join(public.decode().splitlines()[1:-1])
    now = int(time.time())
    claims = {
        "iss": f"PENSTOCK.PENSTOCK.{fingerprint_of(bare)}",
        "sub": "PENSTOCK.PENSTOCK",
        "iat": now,
        "exp": now + 60,
    }
    return jwt.encode(claims | changes, private_key, algorithm="RS256")


class BareClient:
    """Speaks the REST interface without the SDK, and so can say what the SDK never does."""

    def __init__(self, emulator: SnowflakeEmulator, table: str) -> None:
        self._emulator = emulator
        database, schema = emulator.database, emulator.schema
        pipe = urllib.parse.quote(f"{table}-STREAMING", safe="")
        self.pipe = f"databases/{database}/schemas/{schema}/pipes/{pipe}"
        self.jwt = make_jwt(emulator.private_key())

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        token: str | None = None,
    ) -> tuple[int, Any]:
        """Send one request; gives the status and the body, taken as JSON if it is that."""
        context = ssl.create_default_context(cafile=str(self._emulator.ca_file))
        connection = http.client.HTTPSConnection(
            self._emulator.host, self._emulator.port, context=context, timeout=60
        )
        known = {
            "Authorization": f"Bearer {self.jwt if token is None else token}",
            "X-Snowflake-Authorization-Token-Type": "KEYPAIR_JWT",
        }
        try:
            connection.request(method, path, body, known | (headers or {}))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(content)
        except ValueError:
            return answer.status, content.decode(errors="replace")

    def open(self, channel: str = "bare", **settings: Any) -> tuple[int, Any]:
        path = f"/v2/streaming/{self.pipe}/channels/{urllib.parse.quote(channel, safe='')}"
        return self.send("PUT", path, json.dumps(settings).encode())

    def append(
        self,
        token: str,
        body: bytes,
        *,
        channel: str = "bare",
        request: str = "r1",
        offset: str = "1",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        query = urllib.parse.urlencode(
            {"continuationToken": token, "requestId": request, "endOffsetToken": offset}
        )
        path = f"/v2/streaming/data/{self.pipe}/channels/{channel}/rows?{query}"
        return self.send("POST", path, body, headers)
