"""What the emulator refuses, in the shape of each of its two interfaces; runs in the emulator."""

from __future__ import annotations

import snowflake.connector.errors

JWT_INVALID = "390144"


class RefusedError(Exception):
    """A request of the REST interface that gets an error: status, code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message


class LoginRefusedError(Exception):
    """A login or a token that is not good; the reason is for tests, a client sees only the code."""


def sql_error(
    message: str, errno: int = 1003, sqlstate: str = "42000"
) -> snowflake.connector.errors.ProgrammingError:
    """Build the error of a statement, as the connector will raise it."""
    return snowflake.connector.errors.ProgrammingError(msg=message, errno=errno, sqlstate=sqlstate)
