"""The one table from PostgreSQL's SQLSTATEs to Penstock's errors; runs everywhere.

Takes errors of both drivers, psycopg and ADBC, and imports neither. Says also which of them pass
by themselves. Messages of the server are passed on, except where they may hold a row's values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.errors import (
    AccessError,
    ConnectError,
    PenstockError,
    ResourceError,
    SchemaError,
    WireError,
)

_DRIVERS = ("psycopg", "adbc_driver_manager")
# Long enough for the server's sentences, short enough for a log line.
_LONGEST_DETAILS = 400


@dataclass(frozen=True)
class Rule:
    """What one SQLSTATE, or a class of them, means to a user."""

    error: type[PenstockError]
    code: str
    remedy: str
    # Whether waiting helps.
    is_transient: bool = False
    # Whether the server's message may hold a value of a row.
    is_private: bool = False


_TRY_LATER = "This is usually passing: run it again. If it stays, look at the server's log"
_REPORT = "This should not happen: report it with this text"
_LOST = Rule(ConnectError, "CONNECTION_LOST", _TRY_LATER, is_transient=True)
_REFUSED = Rule(ResourceError, "STATEMENT_REFUSED", _REPORT)
_DATA = Rule(
    SchemaError,
    "DATA_REFUSED",
    "A value cannot be read in this way; the server's log says which statement it was",
    is_private=True,
)
_LIMIT = Rule(
    ConnectError,
    "SERVER_LIMIT",
    "Free what the message names on the server (disk, memory, locks), or raise its limit",
)
_AUTHENTICATION = Rule(
    AccessError,
    "AUTHENTICATION",
    "Check user and password, and that pg_hba.conf lets this user in from this machine",
)
_GONE = Rule(
    ResourceError,
    "OBJECT_MISSING",
    "It was dropped, or never made: look at pg_publication, pg_replication_slots and pg_class",
)
_UNFIT = Rule(ResourceError, "STATE_UNFIT", "The message says what stands in the way; change that")
_BUSY = Rule(
    ConnectError,
    "OBJECT_IN_USE",
    "Another session uses it: one query per slot; end the other one",
    is_transient=True,
)
_SHUTDOWN = Rule(
    ConnectError,
    "SERVER_UNAVAILABLE",
    "The server is starting, stopping or was told to end the session: run it again",
    is_transient=True,
)

# By whole SQLSTATE, then by its class (the first two characters).
RULES: dict[str, Rule] = {
    "00": _REFUSED,
    "01": _REFUSED,
    "02": _REFUSED,
    "03": _REFUSED,
    "08": _LOST,
    "09": _REFUSED,
    "0A": Rule(
        ResourceError,
        "NOT_SUPPORTED",
        "This server cannot do it; PostgreSQL 14 and later are supported",
    ),
    "0B": _REFUSED,
    "0F": _REFUSED,
    "0L": _REFUSED,
    "0P": _REFUSED,
    "0Z": _REFUSED,
    "10": _DATA,
    "20": _REFUSED,
    "21": _REFUSED,
    "22": _DATA,
    "23": _DATA,
    "24": _REFUSED,
    "25": _REFUSED,
    "25006": Rule(
        ResourceError,
        "READ_ONLY",
        "The server is a standby, or the session is read-only: connect to the primary",
    ),
    "25P03": _SHUTDOWN,
    "26": _REFUSED,
    "27": _REFUSED,
    "28": _AUTHENTICATION,
    "28P01": Rule(
        AccessError,
        "PASSWORD",
        "Set option 'password', PGPASSWORD or PGPASSFILE on the driver to the right password",
    ),
    "2B": _REFUSED,
    "2D": _REFUSED,
    "2F": _REFUSED,
    "34": _REFUSED,
    "38": _REFUSED,
    "39": _REFUSED,
    "3B": _REFUSED,
    "3D": Rule(
        ResourceError, "DATABASE_MISSING", "Correct the database in option 'url', or create it"
    ),
    "3F": Rule(ResourceError, "SCHEMA_MISSING", "Correct the schema's name, or create it"),
    "40": Rule(ConnectError, "CONFLICT", _TRY_LATER, is_transient=True),
    "42": _REFUSED,
    "42501": Rule(
        AccessError,
        "PERMISSION",
        "Grant the user what the message names: GRANT USAGE ON SCHEMA, GRANT SELECT ON TABLE, "
        "ALTER ROLE ... REPLICATION; see docs/postgres.md",
    ),
    "42703": Rule(
        SchemaError,
        "COLUMN_MISSING",
        "The table has changed since it was looked at: start the query again",
    ),
    "42P01": Rule(
        ResourceError, "TABLE_MISSING", "Correct the table's name, or create it; it may be dropped"
    ),
    "42704": _GONE,
    "42710": Rule(
        ResourceError, "OBJECT_EXISTS", "Choose another name, or drop the one that is there"
    ),
    "44": _DATA,
    "53": _LIMIT,
    "53300": Rule(
        ConnectError,
        "TOO_MANY_CONNECTIONS",
        "Read with fewer partitions, or raise max_connections (or the role's CONNECTION LIMIT)",
        is_transient=True,
    ),
    "53400": Rule(
        ResourceError,
        "SERVER_CONFIGURATION",
        "Raise the server's limit that the message names (max_replication_slots, "
        "max_wal_senders) and restart it, or drop slots that nobody uses",
    ),
    "54": _LIMIT,
    "55": _UNFIT,
    "55006": _BUSY,
    "55P03": Rule(
        ConnectError,
        "LOCK_TIMEOUT",
        "A transaction holds it: find it with SELECT pid, xact_start, query FROM "
        "pg_stat_activity ORDER BY xact_start, and end it or try again later",
    ),
    "57": Rule(ConnectError, "CANCELLED", "The statement was cancelled on the server: see its log"),
    "57P01": _SHUTDOWN,
    "57P02": _SHUTDOWN,
    "57P03": _SHUTDOWN,
    "57P04": Rule(ResourceError, "DATABASE_MISSING", "The database was dropped"),
    "57P05": _SHUTDOWN,
    "58": Rule(ConnectError, "SERVER_SYSTEM", "The server met an error of its system: see its log"),
    "58P01": Rule(
        ResourceError,
        "FILE_MISSING",
        "A file of the server is missing (WAL that was removed, a library): see its log",
    ),
    "72": Rule(ConnectError, "CONFLICT", _TRY_LATER, is_transient=True),
    "F0": _LIMIT,
    "HV": _REFUSED,
    "P0": _REFUSED,
    "XX": Rule(WireError, "SERVER_INTERNAL", "See the server's log, and report it with this text"),
}

_TLS = Rule(
    ConnectError,
    "TLS",
    "Set sslmode, and sslrootcert, sslcert and sslkey where the server asks for them; the files "
    "have to be on the driver and on every executor",
)
_HOST = Rule(ConnectError, "HOST_UNKNOWN", "Correct the host in option 'url'")
_TIMEOUT = Rule(
    ConnectError,
    "CONNECT_TIMEOUT",
    "Check host, port and firewalls, or raise option 'connectTimeout'",
    is_transient=True,
)
_NOBODY_LISTENS = Rule(
    ConnectError,
    "CONNECTION_REFUSED",
    "Check host and port in option 'url', and that the server listens there",
    is_transient=True,
)
# Failed connections have no SQLSTATE in either driver, so libpq's and the server's words decide.
# A server that speaks another language gives the last rule, with its own text.
_CONNECTION_WORDS: tuple[tuple[str, str | Rule], ...] = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("pg_hba.conf rejects", "28000"),
    ("authentication failed", "28000"),
    ("is not permitted to log in", "28000"),
    ("permission denied", "42501"),
    ("must be superuser or replication role", "42501"),
    ("too many clients", "53300"),
    ("remaining connection slots", "53300"),
    ("too many connections", "53300"),
    ("max_wal_senders", "53400"),
    ("the database system is", "57P03"),
    ("terminating connection", "57P01"),
    ("terminating walsender", "57P01"),
    ("certificate", _TLS),
    ("SSL", _TLS),
    ("translate host name", _HOST),
    ("resolve host", _HOST),
    ("timeout expired", _TIMEOUT),
    ("timed out", _TIMEOUT),
    ("refused", _NOBODY_LISTENS),
    ("database", "3D000"),
    ("role", "28000"),
)
_NO_CONNECTION = Rule(
    ConnectError, "CONNECT_FAILED", "Check option 'url' and that the server can be reached"
)

_TRANSIENT_CODES = frozenset(
    rule.code
    for rule in (*RULES.values(), *(found for _, found in _CONNECTION_WORDS))
    if isinstance(rule, Rule) and rule.is_transient
)
_SEVERITY = re.compile(r"\b(?:ERROR|FATAL|PANIC): +(?P<message>[^\n]+)")
_PREFIXES = re.compile(r"^(?:[A-Z_]+: )?(?:\[libpq\] )?(?:Failed to connect: )?")


def is_driver_error(exc: BaseException) -> bool:
    """Tell whether an exception comes from psycopg or ADBC."""
    return any(
        cls.__name__ == "Error" and cls.__module__.split(".")[0] in _DRIVERS
        for cls in type(exc).__mro__
    )


def is_transient(exc: BaseException) -> bool:
    """Tell whether what failed may succeed by itself later; takes translated errors too."""
    if isinstance(exc, PenstockError):
        return exc.code in _TRANSIENT_CODES
    return is_driver_error(exc) and _rule(exc).is_transient


def sqlstate(exc: BaseException) -> str | None:
    """Give the SQLSTATE of a driver's error, if it has one."""
    state: str | None = getattr(exc, "sqlstate", None)
    return state or None


def postgres_error(
    exc: BaseException, subject: str, remedies: Mapping[str, str] | None = None
) -> PenstockError:
    """Build the user's error for a driver's error; see `translated`."""
    rule, state = _rule(exc), sqlstate(exc)
    message = "the server refused a value" if rule.is_private else _message(exc)
    fact = message if state is None else f"{message} (SQLSTATE {state})"
    remedy = (remedies or {}).get(state or "", rule.remedy)
    return rule.error(rule.code, subject, fact, remedy)


@contextmanager
def translated(subject: str, remedies: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn errors of the drivers into the user's error about this object.

    Args:
        subject: what the statements are about: "Table 'public.orders'".
        remedies: by SQLSTATE, what to do instead of what the table says.
    """
    try:
        yield
    except Exception as exc:
        if not is_driver_error(exc):
            raise
        raise postgres_error(exc, subject, remedies) from exc


def _rule(exc: BaseException) -> Rule:
    state = sqlstate(exc)
    if state is not None:
        return RULES.get(state) or RULES.get(state[:2]) or _REFUSED
    text = str(exc)
    if "closed the connection" in text or "connection is" in text or "connection was" in text:
        return RULES["57P01"] if "terminating" in text else _LOST
    for words, found in _CONNECTION_WORDS:
        if words in text:
            return found if isinstance(found, Rule) else _by_state(found)
    return _NO_CONNECTION


def _by_state(state: str) -> Rule:
    return RULES.get(state) or RULES[state[:2]]


def _message(exc: BaseException) -> str:
    primary = getattr(getattr(exc, "diag", None), "message_primary", None)
    text = primary or str(exc)
    severe = _SEVERITY.search(text)
    if severe is not None:
        text = severe["message"]
    # ADBC adds the statement; it is long, and says nothing to a user.
    text = _PREFIXES.sub("", text.split("Query was:")[0])
    return " ".join(text.split())[:_LONGEST_DETAILS].rstrip(". ") or "no message given"
