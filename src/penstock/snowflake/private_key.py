"""The private key of key-pair authentication; runs wherever a connection is made.

Read from the file of the node it is used on, kept in memory only, and read again when the file has
changed. Neither the key nor its passphrase is ever in a message, a log line, a repr or a file.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from penstock.errors import AccessError
from penstock.snowflake.options import SnowpipeOptions

PASSPHRASE_VARIABLE = "PENSTOCK_PRIVATE_KEY_PASSPHRASE"  # noqa: S105 - a variable's name


@dataclass(frozen=True)
class PrivateKey:
    """A key as both clients of Snowflake take it."""

    # Which state of the file it is; equal versions are the same key.
    version: tuple[int, ...]
    pem: str = field(repr=False)
    der: bytes = field(repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a private key does not travel: each node reads its own file")


_KEYS: dict[tuple[str, str | None], PrivateKey] = {}
# Protects _KEYS: tasks of one worker process, and the reaper of its clients.
_LOCK = threading.Lock()


def read_key(options: SnowpipeOptions) -> PrivateKey:
    """Give the key, from memory unless its file has changed.

    Raises:
        AccessError: the file is not there, is no key, or the passphrase is wrong.
    """
    path = Path(options.private_key_file)
    place = (options.private_key_file, options.private_key_passphrase_file)
    version = _version(path)
    with _LOCK:
        known = _KEYS.get(place)
        if known is not None and known.version == version:
            return known
        key = _load(path, version, options)
        _KEYS[place] = key
        return key


def forget_key(options: SnowpipeOptions) -> None:
    """Have the file read again next time, also if it looks the same."""
    with _LOCK:
        _KEYS.pop((options.private_key_file, options.private_key_passphrase_file), None)


def _version(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    return (status.st_mtime_ns, status.st_ino, status.st_size, status.st_dev)


def _unreadable(path: Path, exc: OSError) -> AccessError:
    return AccessError(
        "PRIVATE_KEY_FILE",
        f"Private key file '{path}'",
        f"cannot be read on this node: {exc.strerror or type(exc).__name__}",
        "It has to be on the driver and on every executor, readable for Spark's user",
    )


def _passphrase(options: SnowpipeOptions) -> bytes | None:
    if options.private_key_passphrase_file is not None:
        path = Path(options.private_key_passphrase_file)
        try:
            return path.read_bytes().rstrip(b"\r\n")
        except OSError as exc:
            raise _unreadable(path, exc) from exc
    text = os.environ.get(PASSPHRASE_VARIABLE)
    return text.encode() if text else None


def _load(path: Path, version: tuple[int, ...], options: SnowpipeOptions) -> PrivateKey:
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    is_encrypted = b"ENCRYPTED" in data
    passphrase = _passphrase(options) if is_encrypted else None
    if is_encrypted and not passphrase:
        raise AccessError(
            "PRIVATE_KEY_PASSPHRASE",
            f"Private key file '{path}'",
            "is encrypted, and there is no passphrase on this node",
            f"Set option 'privateKeyPassphraseFile', or the environment variable "
            f"{PASSPHRASE_VARIABLE} of the driver and of every executor",
        )
    try:
        key = serialization.load_pem_private_key(data, passphrase)
    except (ValueError, TypeError):
        # Without the cause: a parser's message may show a part of what it could not read.
        fact = "cannot be decrypted: the passphrase is wrong" if is_encrypted else "is no PEM key"
        raise _unfit(path, fact) from None
    if not isinstance(key, RSAPrivateKey):
        raise _unfit(path, "is no RSA key")
    return PrivateKey(
        version,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
        key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _unfit(path: Path, fact: str) -> AccessError:
    return AccessError(
        "PRIVATE_KEY",
        f"Private key file '{path}'",
        fact,
        "Make one with: openssl genrsa 2048 | openssl pkcs8 -topk8 -inform PEM -nocrypt",
    )
