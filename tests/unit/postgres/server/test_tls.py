"""TLS modes, for both drivers: the wheel's server has no TLS, so a proxy before it speaks it."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import ConnectError
from penstock.postgres.connection import ConnectionSettings, connect_arrow, connect_control
from penstock.testing.postgres import PostgresServer

_SSL_REQUEST = 80877103


def write_certificate(directory: Path, name: str, host: str) -> Path:
    """Write a certificate that signs itself, and its key; give the path of the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    alternative: x509.GeneralName = x509.DNSName(host)
    with contextlib.suppress(ValueError):
        alternative = x509.IPAddress(ipaddress.ip_address(host))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / f"{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.with_suffix(".key").chmod(0o600)
    return path


def pump(source: Any, target: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(client: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with client, contextlib.suppress(OSError, struct.error):
        # A client may ask for GSSAPI first.
        while struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))[1] != _SSL_REQUEST:
            client.sendall(b"N")
        client.sendall(b"S")
        with (
            context.wrap_socket(client, server_side=True) as inside,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            back = threading.Thread(target=pump, args=(server, inside))
            back.start()
            pump(inside, server)
            back.join()


@contextlib.contextmanager
def tls_proxy(certificate: Path, port: int, client_ca: Path | None = None) -> Iterator[int]:
    """Listen with TLS before a server; give the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
        # With 1.3 a client learns only after its handshake that it was refused.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                thread = threading.Thread(target=serve, args=(client, context, port))
                thread.start()
                threads.append(thread)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return write_certificate(tmp_path, "server", "127.0.0.1")


def settings(server: PostgresServer, port: int, **options: Any) -> ConnectionSettings:
    url = server.url().replace(f":{server.port}/", f":{port}/")
    return ConnectionSettings.parse(url, **options)


@pytest.mark.parametrize("connector", [connect_control, connect_arrow])
@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_server_of_the_right_certificate_is_taken(
    postgres: PostgresServer, certificate: Path, connector: Any, mode: str
) -> None:
    with tls_proxy(certificate, postgres.port) as port:
        root = None if mode == "require" else str(certificate)
        connector(settings(postgres, port, sslmode=mode, sslrootcert=root)).close()


@pytest.mark.parametrize("connector", [connect_control, connect_arrow])
@pytest.mark.parametrize(("mode", "wrong"), [("verify-ca", "root"), ("verify-full", "host")])
def test_a_server_of_a_wrong_certificate_is_refused(
    postgres: PostgresServer, tmp_path: Path, connector: Any, mode: str, wrong: str
) -> None:
    shown = write_certificate(tmp_path, "shown", "127.0.0.1" if wrong == "root" else "other.test")
    trusted = write_certificate(tmp_path, "trusted", "127.0.0.1") if wrong == "root" else shown
    with (
        tls_proxy(shown, postgres.port) as port,
        pytest.raises(ConnectError) as caught,
    ):
        connector(settings(postgres, port, sslmode=mode, sslrootcert=str(trusted)))
    assert caught.value.code == "TLS"
    assert "sslrootcert" in caught.value.remedy


@pytest.mark.parametrize("connector", [connect_control, connect_arrow])
def test_a_certificate_of_the_client_is_shown(
    postgres: PostgresServer, certificate: Path, tmp_path: Path, connector: Any
) -> None:
    mine = write_certificate(tmp_path, "mine", "client.test")
    key = str(mine.with_suffix(".key"))
    with tls_proxy(certificate, postgres.port, client_ca=mine) as port:
        connector(
            settings(postgres, port, sslmode="require", sslcert=str(mine), sslkey=key)
        ).close()
        with pytest.raises(ConnectError, match="TLS"):
            connector(settings(postgres, port, sslmode="require"))
