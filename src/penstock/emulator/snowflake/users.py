"""Users and their public keys, JWTs of key pairs, and scoped tokens; runs in the emulator."""

# ruff: noqa: S608 - names are ours, values are parameters

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.emulator.snowflake.database import Database
from penstock.emulator.snowflake.errors import LoginRefusedError

SLOTS = ("RSA_PUBLIC_KEY", "RSA_PUBLIC_KEY_2")
_TOKEN_SECONDS = 3600
# The service takes a JWT that is at most an hour old, whatever it says itself.
_LONGEST_JWT_SECONDS = 3600
_CLOCK_SKEW_SECONDS = 60
# As seconds it would be the year 5138, as milliseconds 1973.
_FIRST_MILLISECONDS = 100_000_000_000
_MARKERS = re.compile(r"-----(BEGIN|END) PUBLIC KEY-----|\s")


class PublicKeyError(ValueError):
    """A text that is not an RSA public key."""


class Users:
    """Who may log in; kept in the emulator's database."""

    def __init__(self, database: Database, account: str, secret: bytes) -> None:
        self._database = database
        self._account = account.upper()
        self._secret = secret

    def exists(self, user: str) -> bool:
        """Tell whether there is a user of this name."""
        return bool(self._database.rows("SELECT 1 FROM _penstock.users WHERE name = ?", [user]))

    def create(self, user: str) -> None:
        """Add a user without keys, if it is not there."""
        self._database.run("INSERT OR IGNORE INTO _penstock.users (name) VALUES (?)", [user])

    def drop(self, user: str) -> None:
        """Remove a user."""
        self._database.run("DELETE FROM _penstock.users WHERE name = ?", [user])

    def set_key(self, user: str, slot: str, key: str | None) -> None:
        """Set or unset one of a user's two public keys."""
        if slot not in SLOTS:
            raise PublicKeyError(f"there is no slot {slot!r}; they are {', '.join(SLOTS)}")
        text = None if key is None else _base64_of(key)
        self._database.run(
            f"UPDATE _penstock.users SET {slot.lower()} = ? WHERE name = ?",
            [text, user],
        )

    def keys(self, user: str) -> list[str]:
        """Give a user's public keys, as base64 of their DER form."""
        rows = self._database.rows(
            "SELECT rsa_public_key, rsa_public_key_2 FROM _penstock.users WHERE name = ?", [user]
        )
        return [key for row in rows for key in row if key is not None]

    def check_jwt(self, token: str) -> str:
        """Verify the JWT of a key pair; returns the user's name."""
        try:
            claims = jwt.decode(token, options={"verify_signature": False})
            issuer = claims["iss"]
            subject = claims["sub"]
        except (jwt.PyJWTError, KeyError, TypeError, ValueError) as exc:
            raise LoginRefusedError(f"not a JWT with issuer and subject: {exc}") from None
        if not isinstance(issuer, str) or not isinstance(subject, str):
            raise LoginRefusedError("issuer or subject is not a text")
        head, separator, fingerprint = issuer.partition(".SHA256:")
        account, dot, user = subject.partition(".")
        if not separator or not dot or head != subject:
            raise LoginRefusedError("the issuer is not ACCOUNT.USER.SHA256:fingerprint")
        if account != self._account:
            raise LoginRefusedError("the account is another one")
        for key in self.keys(user):
            if fingerprint_of(key) == f"SHA256:{fingerprint}":
                self._verify(token, key)
                return user
        raise LoginRefusedError("the user has no such key")

    def _verify(self, token: str, key: str) -> None:
        try:
            claims = jwt.decode(
                token,
                _load(key),
                algorithms=["RS256"],
                options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
            )
            issued = _seconds(claims["iat"])
            expires = _seconds(claims["exp"])
        except (jwt.PyJWTError, KeyError, ValueError, TypeError) as exc:
            raise LoginRefusedError(f"not verified: {exc}") from None
        now = time.time()
        if now > min(expires, issued + _LONGEST_JWT_SECONDS) + _CLOCK_SKEW_SECONDS:
            raise LoginRefusedError("expired")
        if issued > now + _CLOCK_SKEW_SECONDS:
            raise LoginRefusedError("issued in the future")

    def issue_token(self, user: str) -> str:
        """Give the scoped token that the ingest endpoints take."""
        now = int(time.time())
        claims = {"sub": user, "iat": now, "exp": now + _TOKEN_SECONDS}
        return jwt.encode(claims, self._secret, algorithm="HS256")

    def check_token(self, token: str) -> str:
        """Verify a scoped token; returns the user's name."""
        try:
            claims = jwt.decode(token, self._secret, algorithms=["HS256"])
        except (jwt.PyJWTError, ValueError) as exc:
            raise LoginRefusedError(f"not a token of this emulator: {exc}") from None
        user = str(claims.get("sub"))
        if not self.exists(user):
            raise LoginRefusedError("the user is gone")
        return user


def _seconds(claim: object) -> float:
    """Read a time of a JWT; the SDK writes milliseconds, where the standard asks for seconds."""
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        raise TypeError("a time is not a number")
    return claim / 1000 if claim > _FIRST_MILLISECONDS else float(claim)


def fingerprint_of(key: str) -> str:
    """Give a public key's fingerprint in Snowflake's form."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode()


def _base64_of(key: str) -> str:
    """Give the DER form in base64 of a key with or without the lines around it."""
    text = _MARKERS.sub("", key)
    _load(text)
    return text


def _load(key: str) -> rsa.RSAPublicKey:
    try:
        loaded = serialization.load_der_public_key(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        raise PublicKeyError("the text is not a public key in base64") from None
    if not isinstance(loaded, rsa.RSAPublicKey):
        raise PublicKeyError("the key is not an RSA key")
    return loaded
