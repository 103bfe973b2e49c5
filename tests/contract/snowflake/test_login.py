"""Key pairs: the right one, a wrong one, and one after the other."""

from __future__ import annotations

import time
from typing import Any

import jwt
import pytest
import snowflake.connector.errors
from snowflake.ingest.streaming import StreamingIngestError

from tests.support.snowflake import Lake, der, make_jwt, new_key


def test_a_wrong_key_is_refused(lake: Lake) -> None:
    private, _ = new_key()
    with pytest.raises(snowflake.connector.errors.DatabaseError) as caught:
        lake.emulator.connect(private_key=der(private))
    assert caught.value.errno == 390144
    assert "JWT token is invalid" in str(caught.value)


def test_the_sdk_is_refused_with_a_wrong_key(lake: Lake) -> None:
    private, _ = new_key()
    table = lake.table("ID NUMBER(38,0)")
    limits = {"non_scoped_auth_failure_retry_total_backoff_seconds": "1"}
    with (
        pytest.raises(StreamingIngestError, match="390144"),
        lake.client(table, private_key=private, **limits),
    ):
        pass


def test_two_keys_let_one_take_the_other_s_place(lake: Lake) -> None:
    (old, old_public), (new, new_public) = new_key(), new_key()
    lake.run("CREATE USER ROTATING")

    def connect(private: str) -> None:
        lake.emulator.connect(user="ROTATING", private_key=der(private)).close()

    def refused(private: str) -> None:
        with pytest.raises(snowflake.connector.errors.DatabaseError, match="JWT token is invalid"):
            connect(private)

    lake.run(f"ALTER USER ROTATING SET RSA_PUBLIC_KEY='{old_public}'")
    connect(old)
    refused(new)
    bare = "".join(new_public.splitlines()[1:-1])
    lake.run(f"ALTER USER ROTATING SET RSA_PUBLIC_KEY_2='{bare}'")
    connect(old)
    connect(new)
    lake.run("ALTER USER ROTATING UNSET RSA_PUBLIC_KEY")
    refused(old)
    connect(new)
    lake.emulator.set_public_key("ROTATING", None, "RSA_PUBLIC_KEY_2")
    refused(new)
    lake.run("DROP USER ROTATING")


def test_a_text_that_is_no_key_is_refused(lake: Lake) -> None:
    with pytest.raises(snowflake.connector.errors.ProgrammingError, match="public key rejected"):
        lake.run("ALTER USER PENSTOCK SET RSA_PUBLIC_KEY_2='nonsense'")
    with pytest.raises(ValueError, match="not a public key"):
        lake.emulator.set_public_key("PENSTOCK", "nonsense", "RSA_PUBLIC_KEY_2")


def _claims(**changes: Any) -> Any:
    return pytest.param(changes, id=next(iter(changes)))


@pytest.mark.parametrize(
    "changes",
    [
        _claims(exp=int(time.time()) - 3600),
        _claims(iat=int(time.time()) - 7300, exp=int(time.time()) + 60),
        _claims(iat=int(time.time()) + 3600),
        _claims(sub="PENSTOCK.OTHER"),
        _claims(iss="PENSTOCK.PENSTOCK.SHA256:nonsense"),
        _claims(sub="OTHER.PENSTOCK", iss="OTHER.PENSTOCK.SHA256:x"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(lake: Lake, changes: dict[str, Any]) -> None:
    client = lake.bare(lake.table("ID NUMBER(38,0)"))
    token = make_jwt(lake.emulator.private_key(), **changes)
    status, answer = client.send("GET", "/v2/streaming/hostname", token=token)
    assert (status, answer["code"]) == (401, "390144")


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "....", "\u00e9".encode().hex() * 500])
def test_a_token_that_is_none_is_refused(lake: Lake, token: str) -> None:
    client = lake.bare(lake.table("ID NUMBER(38,0)"))
    assert client.send("GET", "/v2/streaming/hostname", token=token)[0] == 401
    scoped = {"X-Snowflake-Authorization-Token-Type": "OAUTH"}
    path = f"/v2/streaming/{client.pipe}:pipe-info"
    assert client.send("POST", path, headers=scoped, token=token)[0] == 401


def test_a_token_signed_by_nobody_is_refused(lake: Lake) -> None:
    client = lake.bare(lake.table("ID NUMBER(38,0)"))
    claims = jwt.decode(client.jwt, options={"verify_signature": False})
    unsigned = jwt.encode(claims, None, algorithm="none")
    assert client.send("GET", "/v2/streaming/hostname", token=unsigned)[0] == 401


def test_a_password_is_refused_with_a_remedy(lake: Lake) -> None:
    with pytest.raises(snowflake.connector.errors.DatabaseError, match="key pairs only"):
        lake.emulator.connect(private_key=None, password="secret")  # noqa: S106 - none at all


def test_sessions_are_counted(lake: Lake) -> None:
    before = lake.emulator.sessions()
    connection = lake.emulator.connect()
    assert lake.emulator.sessions() == before + 1
    connection.close()
    assert lake.emulator.sessions() == before
