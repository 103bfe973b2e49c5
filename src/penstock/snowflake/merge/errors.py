"""From errors of snowflake.connector to Penstock's, by number and SQLSTATE; runs everywhere.

Imports no connector. Says also which of them pass by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.errors import (
    AccessError,
    ConnectError,
    PenstockError,
    ResourceError,
    SchemaError,
    WriteRejectedError,
)

_LONGEST_DETAILS = 400


@dataclass(frozen=True)
class Rule:
    """What one error of the server means to a user."""

    error: type[PenstockError]
    code: str
    remedy: str
    is_transient: bool = False
    # Whether the server's message may hold a value of a row.
    is_private: bool = False


_TRY_LATER = "This is usually passing: run it again; nothing was changed"
_LOST = Rule(ConnectError, "SNOWFLAKE_CONNECTION", _TRY_LATER, is_transient=True)
_BUSY = Rule(
    ConnectError,
    "SNOWFLAKE_LOCK",
    "Another session holds the table: see SHOW LOCKS, end it, or run this again",
    is_transient=True,
)
_CANCELLED = Rule(
    ConnectError, "SNOWFLAKE_TIMEOUT", "Use a larger warehouse or more time; nothing was changed"
)
_SESSION = Rule(ConnectError, "SNOWFLAKE_SESSION", "The session has ended: connect again")
_ACCESS = Rule(
    AccessError, "SNOWFLAKE_PERMISSION", "Grant the role what the message names, to use the objects"
)
_MISSING = Rule(
    ResourceError,
    "SNOWFLAKE_OBJECT",
    "It does not exist, or the role may not see it: correct the name, create it, or grant access",
)
_WAREHOUSE = Rule(
    ResourceError, "SNOWFLAKE_WAREHOUSE", "Set option 'warehouse' to one that the role may use"
)
_COLUMNS = Rule(
    SchemaError,
    "SNOWFLAKE_COLUMN",
    "The tables have changed since the query began: start it again",
)
_DATA = Rule(
    WriteRejectedError,
    "SNOWFLAKE_DATA",
    "A value does not fit the target: compare the types of landing table and target",
    is_private=True,
)
_REFUSED = Rule(
    WriteRejectedError, "SNOWFLAKE_REFUSED", "This should not happen: report it with this text"
)

# By error number; https://docs.snowflake.com and the connector's errorcode module.
RULES: dict[int, Rule] = {
    603: _LOST,  # internal error of the server
    604: _CANCELLED,
    606: _WAREHOUSE,
    610: _SESSION,
    625: _BUSY,
    630: _CANCELLED,
    904: _COLUMNS,
    2003: _MISSING,
    2043: _MISSING,
    3001: _ACCESS,
    100038: _DATA,
    100040: _DATA,
    100072: _DATA,
    100078: _DATA,
    390111: _SESSION,
    390112: _SESSION,
    390114: _SESSION,
    250001: _LOST,
    250003: _LOST,
}
_BY_CLASS = {"08": _LOST, "22": _DATA, "40": _BUSY, "42": _REFUSED, "57": _CANCELLED}
# The connector adds the status of an HTTP answer to this number.
_HTTP = 290000
_PASSING_HTTP = frozenset({_HTTP + 408, _HTTP + 429, *range(_HTTP + 500, _HTTP + 600)})
# Those that come without a number of their own.
_PASSING_CLASSES = frozenset(
    {
        "OperationalError",
        "InterfaceError",
        "InternalServerError",
        "BadGatewayError",
        "ServiceUnavailableError",
        "GatewayTimeoutError",
        "RequestTimeoutError",
        "TooManyRequests",
        "OtherHTTPRetryableError",
    }
)
_TRANSIENT_CODES = frozenset(rule.code for rule in RULES.values() if rule.is_transient)


def is_transient(exc: PenstockError) -> bool:
    """Tell whether what failed may succeed by itself later."""
    return exc.code in _TRANSIENT_CODES


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """Turn errors of the connector into the user's error about this object."""
    try:
        yield
    except Exception as exc:
        if not _is_connector_error(exc):
            raise
        raise snowflake_error(exc, subject) from exc


def snowflake_error(exc: BaseException, subject: str) -> PenstockError:
    """Build the user's error for one of the connector's."""
    rule = _rule(exc)
    number, state = getattr(exc, "errno", None), getattr(exc, "sqlstate", None)
    message = getattr(exc, "raw_msg", None) or getattr(exc, "msg", None) or str(exc)
    message = " ".join(str(message).split())[:_LONGEST_DETAILS].rstrip(". ")
    fact = "the server refused a value" if rule.is_private else message or "no message given"
    return rule.error(rule.code, subject, f"{fact} (error {number}, SQLSTATE {state})", rule.remedy)


def _is_connector_error(exc: BaseException) -> bool:
    return any(
        cls.__name__ == "Error" and cls.__module__.startswith("snowflake.connector")
        for cls in type(exc).__mro__
    )


def _rule(exc: BaseException) -> Rule:
    number = getattr(exc, "errno", None) or 0
    found = RULES.get(number)
    if found is not None:
        return found
    if number in _PASSING_HTTP:
        return _LOST
    state = getattr(exc, "sqlstate", None) or ""
    found = _BY_CLASS.get(state[:2])
    if found is not None:
        return found
    names = {cls.__name__ for cls in type(exc).__mro__}
    return _LOST if names & _PASSING_CLASSES else _REFUSED
