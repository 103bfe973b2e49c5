"""The emulator's throw-away certificates and its first user's key; runs where it is started.

They live in a directory of their own and are made once, so that an emulator that is started again
is trusted by clients that are still running.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import certifi
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

_KEY_BITS = 2048


class Identity:
    """Paths of the files in `directory`; `make` writes those that are not there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The usual authorities, too: who is told to trust this file can still reach the world.
        self.ca_file = directory / "ca.pem"
        self.server_file = directory / "server.pem"
        self.private_key_file = directory / "user_key.p8"
        self.public_key_file = directory / "user_key.pub"

    def make(self, host: str) -> None:
        """Write certificates for `localhost` and `host`, and the first user's key pair."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.server_file.exists():
            authority = trustme.CA()
            names = dict.fromkeys(["localhost", "127.0.0.1", "::1", host.strip("[]")])
            names.pop("0.0.0.0", None)  # noqa: S104 - compared, not bound
            names.pop("::", None)
            leaf = authority.issue_cert(*names)
            self.ca_file.write_bytes(
                authority.cert_pem.bytes() + b"\n" + Path(certifi.where()).read_bytes()
            )
            _write_secret(self.server_file, leaf.private_key_and_cert_chain_pem.bytes())
        if not self.private_key_file.exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
            self.public_key_file.write_bytes(
                key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
            _write_secret(
                self.private_key_file,
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            )

    def secret(self) -> bytes:
        """Give the key that signs tokens: the same after a restart, like the certificate."""
        return hashlib.sha256(b"tokens" + self.server_file.read_bytes()).digest()


def _write_secret(path: Path, content: bytes) -> None:
    # Renamed when whole: a process that dies here leaves no half of a key.
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.rename(path)
