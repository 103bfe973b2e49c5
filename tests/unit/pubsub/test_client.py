"""Channels and credentials: who is told what, and what is never shown."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google.auth
import google.auth.exceptions
import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.errors import AccessError, ConnectError
from penstock.pubsub import credentials as credentials_module
from penstock.pubsub.client import GET_TOPIC, PubSubClient
from penstock.pubsub.credentials import load_credentials
from penstock.pubsub.errors import CallFailed
from penstock.pubsub.options import PubSubSinkOptions

TOPIC = "projects/p/topics/orders"


def sink(**raw: str) -> PubSubSinkOptions:
    return PubSubSinkOptions.parse({"topicId": TOPIC, "endpoint": "https://localhost:1", **raw})


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.fixture(scope="module")
def account(key: rsa.RSAPrivateKey) -> dict[str, str]:
    return {
        "type": "service_account",
        "client_email": "writer@p.iam.gserviceaccount.com",
        "client_id": "17",
        "private_key": pem(key).decode(),
        "private_key_id": "kid",
        "token_uri": "https://oauth2.googleapis.com/token",
    }


@pytest.fixture(scope="module")
def certificate(key: rsa.RSAPrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def tls_server(
    key: rsa.RSAPrivateKey, certificate: bytes, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, dict[str, str]]]:
    seen: dict[str, str] = {}

    def answer(payload: bytes, context: grpc.ServicerContext) -> bytes:
        seen.update(context.invocation_metadata())
        return b"answer to " + payload

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {"GetTopic": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", handlers),)
    )
    credentials = grpc.ssl_server_credentials([(pem(key), certificate)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    made = grpc.ssl_channel_credentials
    monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda: made(certificate))
    yield f"https://localhost:{port}", seen
    server.stop(None).wait()


def ask(options: PubSubSinkOptions) -> bytes:
    client = PubSubClient(options)
    try:
        return client.call(GET_TOPIC, TOPIC, b"question", 10.0)
    finally:
        client.close()


def test_tls_calls_carry_a_token_signed_with_the_inline_key(
    tls_server: tuple[str, dict[str, str]], account: dict[str, str]
) -> None:
    endpoint, seen = tls_server
    options = sink(endpoint=endpoint, credentials=json.dumps(account))
    assert ask(options) == b"answer to question"
    assert seen["authorization"].startswith("Bearer ey")
    assert seen["x-goog-request-params"] == "topic=projects%2Fp%2Ftopics%2Forders"


def test_tls_calls_work_with_a_key_in_four_parts(
    tls_server: tuple[str, dict[str, str]], account: dict[str, str]
) -> None:
    endpoint, seen = tls_server
    options = sink(
        endpoint=endpoint,
        clientEmail=account["client_email"],
        clientId=account["client_id"],
        privateKey=account["private_key"].replace("\n", "\\n"),
        privateKeyId=account["private_key_id"],
    )
    assert ask(options) == b"answer to question"
    assert seen["authorization"].startswith("Bearer ey")


def test_a_credentials_file_is_read_where_it_is_used(
    account: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    options = sink(credentialsFile=str(path))
    with pytest.raises(AccessError, match="does not exist on this node"):
        load_credentials(options)
    path.write_text(json.dumps(account))
    assert load_credentials(options).service_account_email == account["client_email"]


def test_a_credentials_file_that_is_no_key_is_an_access_error(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text('{"type": "service_account", "private_key": "SECRET"}')
    with pytest.raises(AccessError, match="cannot be used") as caught:
        load_credentials(sink(credentialsFile=str(path)))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("content", ["SECRET", "[1]", '{"type": "SECRET"}'])
def test_a_credentials_file_with_something_else_is_an_access_error(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "key.json"
    path.write_text(content)
    with pytest.raises(AccessError, match=r"key\.json") as caught:
        load_credentials(sink(credentialsFile=str(path)))
    assert "SECRET" not in str(caught.value)


def test_a_users_own_and_external_credentials_are_taken() -> None:
    user = {"client_id": "i", "client_secret": "s", "refresh_token": "r"}
    made = load_credentials(sink(credentials=json.dumps({"type": "authorized_user", **user})))
    assert made.client_id == "i"
    external = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/a/b",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": "/var/run/token"},
    }
    assert load_credentials(sink(credentials=json.dumps(external))).requires_scopes in (True, False)


@pytest.mark.parametrize(
    "info",
    [
        {"type": "service_account", "private_key": "SECRET"},
        {
            "type": "service_account",
            "private_key": "SECRET",
            "client_email": "a",
            "token_uri": "https://t",
        },
        {"type": "SECRET"},
    ],
)
def test_inline_credentials_that_are_no_key_are_an_access_error_without_the_key(
    info: dict[str, str],
) -> None:
    with pytest.raises(AccessError, match="Inline credentials") as caught:
        load_credentials(sink(credentials=json.dumps(info)))
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_absent_default_credentials_are_an_access_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(**_: Any) -> Any:
        raise google.auth.exceptions.DefaultCredentialsError("none")

    monkeypatch.setattr(google.auth, "default", none)
    with pytest.raises(AccessError, match="gcloud auth application-default login"):
        PubSubClient(sink())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (google.auth.exceptions.RefreshError("SECRET"), AccessError),
        (google.auth.exceptions.TransportError("SECRET"), ConnectError),
    ],
)
def test_a_refused_or_unreachable_token_is_an_error_before_any_call(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: type[Exception]
) -> None:
    class Credentials:
        valid = False

        def refresh(self, session: Any) -> None:
            raise raised

    monkeypatch.setattr(credentials_module, "load_credentials", lambda options: Credentials())
    with pytest.raises(expected) as caught:
        PubSubClient(sink())
    assert "SECRET" not in str(caught.value)


def test_plain_text_asks_for_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(options: Any) -> Any:
        raise AssertionError("credentials were looked for")

    monkeypatch.setattr(credentials_module, "load_credentials", never)
    client = PubSubClient(sink(endpoint="http://127.0.0.1:9", credentialsFile="/absent"))
    with pytest.raises(CallFailed) as caught:
        client.call(GET_TOPIC, TOPIC, b"", 5.0)
    client.close()
    assert caught.value.code == "UNAVAILABLE"
