"""Connections for statements, with snowflake.connector; run on the driver only.

Tasks never make one: they write through channels.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import snowflake.connector

from penstock.errors import AccessError, ConnectError, PenstockError
from penstock.snowflake.merge.errors import translated
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.private_key import forget_key, read_key

# Refused logins: by key, by name, by policy.
_REFUSALS = frozenset({390100, 390101, 390102, 390143, 390144, 390189, 390195, 390197, 394304})
_LOST = 250001
_STATEMENT_SECONDS = 120


@contextmanager
def connected(options: SnowpipeOptions) -> Iterator[Any]:
    """Connect, for the length of a `with` block.

    Raises:
        AccessError: the key or the user is refused.
        ConnectError: the account cannot be reached.
    """
    connection = _connect(options)
    try:
        yield connection
    finally:
        connection.close()


def _connect(options: SnowpipeOptions) -> Any:
    try:
        return _login(options)
    except AccessError:
        # The key may have been rotated under a file that looks the same.
        forget_key(options)
        return _login(options)


def _login(options: SnowpipeOptions) -> Any:
    # The connector says what it does at INFO; errors come as exceptions.
    logging.getLogger("snowflake.connector").setLevel(logging.WARNING)
    given: dict[str, Any] = {
        "account": options.account,
        "host": options.host_name,
        "port": options.port,
        "protocol": "https",
        "user": options.user,
        "private_key": read_key(options).der,
        "authenticator": "SNOWFLAKE_JWT",
        "role": options.role,
        "warehouse": options.warehouse,
        "database": options.database,
        "schema": options.schema,
        "application": "Penstock",
        "login_timeout": max(1, int(options.connect_timeout)),
        "network_timeout": max(1, int(options.flush_timeout)),
        "client_session_keep_alive": False,
        "session_parameters": {"QUERY_TAG": "penstock"},
    }
    try:
        return snowflake.connector.connect(
            **{name: value for name, value in given.items() if value is not None}
        )
    except snowflake.connector.Error as exc:
        raise _login_error(exc, options) from exc


def _login_error(exc: snowflake.connector.Error, options: SnowpipeOptions) -> PenstockError:
    text = " ".join(str(exc.msg or exc).split())[:400].rstrip(". ")
    subject = f"Snowflake account '{options.account}' at {options.host_name}:{options.port}"
    if exc.errno in _REFUSALS or "JWT" in text or any(str(code) in text for code in _REFUSALS):
        return AccessError(
            "SNOWFLAKE_LOGIN",
            f"{subject}, user '{options.user}'",
            f"the login was refused: {text}",
            "Check option 'user', and that the public key of 'privateKeyFile' is the user's "
            "RSA_PUBLIC_KEY or RSA_PUBLIC_KEY_2 (DESCRIBE USER)",
        )
    return ConnectError(
        "SNOWFLAKE_CONNECT",
        subject,
        f"cannot be reached: {text}",
        "Check options 'account', 'host' and 'port', and that this machine may go there",
    )


def execute(connection: Any, sql: str, subject: str) -> list[tuple[Any, ...]]:
    """Run one statement about an object and give its rows."""
    with translated(subject), connection.cursor() as cursor:
        cursor.execute(sql, timeout=_STATEMENT_SECONDS)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
