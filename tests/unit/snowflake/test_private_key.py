"""The private key: read where it is used, again when it changes, and never shown."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from penstock.errors import AccessError
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.private_key import PASSPHRASE_VARIABLE, forget_key, read_key

PASSPHRASE = "correct horse"  # noqa: S105


def pem_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, passphrase: str = "") -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


@pytest.fixture(scope="module")
def keys() -> list[rsa.RSAPrivateKey]:
    return [rsa.generate_private_key(65537, 2048) for _ in range(2)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    return tmp_path / "key.p8"


def options(path: Path, **more: str) -> SnowpipeOptions:
    given = {"account": "a", "user": "u", "database": "d", "table": "t"}
    return SnowpipeOptions.parse({**given, "privateKeyFile": str(path), **more})


def test_a_key_is_read_in_both_forms(path: Path, keys: list[rsa.RSAPrivateKey]) -> None:
    path.write_bytes(pem_of(keys[0]))
    key = read_key(options(path))
    assert key.pem.encode() == pem_of(keys[0])
    assert serialization.load_der_private_key(key.der, None)
    assert read_key(options(path)) is key


def test_a_key_is_read_again_when_its_file_changes(
    path: Path, keys: list[rsa.RSAPrivateKey]
) -> None:
    path.write_bytes(pem_of(keys[0]))
    read_key(options(path))
    other = path.with_name("new")
    other.write_bytes(pem_of(keys[1]))
    # As secrets are rotated: another file takes the name, with the older file's times.
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert read_key(options(path)).pem.encode() == pem_of(keys[1])


def test_a_key_that_was_refused_is_read_again(path: Path, keys: list[rsa.RSAPrivateKey]) -> None:
    path.write_bytes(pem_of(keys[0]))
    first = read_key(options(path))
    forget_key(options(path))
    assert read_key(options(path)) is not first


def test_an_encrypted_key_takes_its_passphrase_from_a_file(
    path: Path, keys: list[rsa.RSAPrivateKey]
) -> None:
    path.write_bytes(pem_of(keys[0], PASSPHRASE))
    secret = path.with_name("pass")
    secret.write_text(PASSPHRASE + "\n")
    key = read_key(options(path, privateKeyPassphraseFile=str(secret)))
    assert key.pem.encode() == pem_of(keys[0])


def test_an_encrypted_key_takes_its_passphrase_from_the_environment(
    path: Path, keys: list[rsa.RSAPrivateKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(pem_of(keys[0], PASSPHRASE))
    with pytest.raises(AccessError, match=PASSPHRASE_VARIABLE):
        read_key(options(path))
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "wrong")
    with pytest.raises(AccessError, match="passphrase is wrong"):
        read_key(options(path))
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    assert read_key(options(path)).pem.encode() == pem_of(keys[0])


def test_what_is_no_key_is_named_without_being_shown(path: Path) -> None:
    with pytest.raises(AccessError, match="cannot be read on this node"):
        read_key(options(path))
    path.write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    with pytest.raises(AccessError, match="is no PEM key") as caught:
        read_key(options(path))
    assert "c2VjcmV0" not in repr(caught.value)
    assert caught.value.__cause__ is None
    path.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(AccessError, match="no RSA key"):
        read_key(options(path))


def test_a_key_neither_shows_itself_nor_travels(path: Path, keys: list[rsa.RSAPrivateKey]) -> None:
    path.write_bytes(pem_of(keys[0]))
    key = read_key(options(path))
    assert "PRIVATE" not in repr(key)
    assert "der" not in repr(key)
    with pytest.raises(TypeError, match="does not travel"):
        pickle.dumps(key)
