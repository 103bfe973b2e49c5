"""Connections to PostgreSQL: for statements, for replication commands, and for Arrow.

The driver parses `ConnectionSettings` once, environment and password file included, and sends them
to the tasks, which need no environment of their own. Control and replication connections live on
the driver (psycopg), Arrow connections in tasks (ADBC). No secret is ever shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError, missing_extra
from penstock.postgres.errors import translated
from penstock.postgres.passfile import look_up
from penstock.postgres.types.policy import SESSION_SETTINGS

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from adbc_driver_manager import dbapi

# What every session has, so that texts of values, names and plans do not depend on a role's or a
# database's own settings.
PINNED_SESSION: Mapping[str, str] = {
    **SESSION_SETTINGS,
    # Statements here may be long, and a held snapshot is an idle transaction.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # A policy would silently leave rows out of the snapshot that the WAL has: an error instead.
    "row_security": "off",
}
# A dead peer is noticed after a minute, not after the kernel's two hours.
_DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "10",
    "application_name": "penstock",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
_SECRET_KEYS = frozenset({"password", "sslpassword", "oauth_client_secret"})
# What Penstock sets by itself, or what executors could not follow.
_REFUSED_KEYS: Mapping[str, str] = {
    "replication": "Penstock opens its replication connection itself",
    "service": "set PGSERVICE on the driver, or write the service's host and database in the URL",
    "client_encoding": "it is always UTF8",
}


@dataclass(frozen=True)
class ConnectionSettings:
    """How to reach a database. Picklable: it travels to the executors, secrets included."""

    # libpq's parameters by their names, secrets apart.
    parameters: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        sslmode: str | None = None,
        sslrootcert: str | None = None,
        sslcert: str | None = None,
        sslkey: str | None = None,
        connect_timeout_seconds: float | None = None,
    ) -> ConnectionSettings:
        """Read a URL and the options beside it, which win, on the driver.

        What neither says comes from the environment (PGPASSWORD, PGSSLMODE and so on) and, for
        the password, from the password file: all as libpq does.

        Raises:
            OptionError: the URL cannot be read or has a parameter that is not allowed.
        """
        options = {
            "user": user,
            "password": password,
            "sslmode": sslmode,
            "sslrootcert": sslrootcert,
            "sslcert": sslcert,
            "sslkey": sslkey,
            # libpq takes whole seconds, and 0 as no limit at all.
            "connect_timeout": None
            if connect_timeout_seconds is None
            else str(max(1, round(connect_timeout_seconds))),
        }
        given = {
            **_parse_url(url),
            **{key: value for key, value in options.items() if value is not None},
        }
        known = {**_DEFAULTS, **_environment(), **given}
        if not known.get("dbname"):
            raise _url_error("names no database", "Write postgresql://user@host:5432/database")
        if "password" not in known and (found := _from_passfile(known)) is not None:
            known["password"] = found
        known.pop("passfile", None)
        public = tuple((key, value) for key, value in known.items() if key not in _SECRET_KEYS)
        hidden = tuple((key, value) for key, value in known.items() if key in _SECRET_KEYS)
        return cls(public, hidden)

    def get(self, key: str, default: str = "") -> str:
        """Give one of libpq's parameters, by its name."""
        return dict(self.parameters).get(key, default)

    @property
    def database(self) -> str:
        """The database's name."""
        return self.get("dbname")

    @property
    def user(self) -> str:
        """The user's name; empty where libpq takes the system's."""
        return self.get("user")

    @property
    def server(self) -> str:
        """What is connected to, for messages."""
        host = self.get("host") or self.get("hostaddr") or "local socket"
        return f"{host}:{self.get('port', '5432')}/{self.database}"

    def conninfo(self, session: Mapping[str, str] | None = None, **extra: str) -> str:
        """Write libpq's connection string, secrets included.

        Args:
            session: server settings of the session, over those that are pinned.
            extra: more of libpq's parameters.
        """
        parameters = {**dict(self.parameters), **dict(self.secrets), **extra}
        # The last setting of a name wins: what is pinned wins over the URL's options.
        own = session_options({**PINNED_SESSION, **(session or {})})
        parameters["options"] = f"{parameters.get('options', '')} {own}".strip()
        return " ".join(f"{key}={_quote(value)}" for key, value in parameters.items())


def session_options(session: Mapping[str, str]) -> str:
    """Write server settings in the form of libpq's parameter `options`."""
    words = (f"{name}={value}" for name, value in session.items())
    return " ".join("-c " + word.replace("\\", "\\\\").replace(" ", "\\ ") for word in words)


def untimed_session(version: int) -> dict[str, str]:
    """Give what a session of this version needs besides, to hold a transaction for long."""
    return {"transaction_timeout": "0"} if version >= 170_000 else {}


def connect_control(
    settings: ConnectionSettings, session: Mapping[str, str] | None = None
) -> psycopg.Connection[Any]:
    """Connect for statements, with autocommit; on the driver."""
    driver = _import_psycopg()
    with translated(f"Server '{settings.server}'"):
        connection: psycopg.Connection[Any] = driver.connect(
            settings.conninfo(session), autocommit=True, prepare_threshold=None
        )
        return connection


def connect_replication(
    settings: ConnectionSettings, session: Mapping[str, str] | None = None
) -> psycopg.Connection[Any]:
    """Connect for replication commands; on the driver. It knows the simple protocol only."""
    driver = _import_psycopg()
    grant = f"ALTER ROLE {settings.user or 'the user'} REPLICATION"
    remedies = {"42501": f"Let the user replicate: {grant}"}
    with translated(f"Server '{settings.server}'", remedies):
        connection: psycopg.Connection[Any] = driver.connect(
            settings.conninfo(session, replication="database"),
            autocommit=True,
            # Parameters are put into the text by the client: the protocol has no others here.
            cursor_factory=driver.ClientCursor,
        )
        return connection


def connect_arrow(
    settings: ConnectionSettings, session: Mapping[str, str] | None = None
) -> dbapi.Connection:
    """Connect for results as Arrow; in a task. Read-only; each statement begins a transaction."""
    try:
        from adbc_driver_postgresql import dbapi as adbc
    except ImportError as exc:
        raise missing_extra("format('postgres_cdc')", "postgres", "adbc_driver_postgresql") from exc
    with translated(f"Server '{settings.server}'"):
        connection: dbapi.Connection = adbc.connect(
            settings.conninfo({"default_transaction_read_only": "on", **(session or {})})
        )
        return connection


def arrow_batches(cursor: dbapi.Cursor) -> Iterator[pa.RecordBatch]:
    """Give the rows of a statement that ran on an Arrow connection, as they come.

    `fetch_record_batch` would do the same, but its reader raises pyarrow's own errors, without the
    SQLSTATE; the reader behind it raises ADBC's.
    """
    yield from cursor._results.reader  # type: ignore[union-attr]  # noqa: SLF001


def _import_psycopg() -> Any:
    try:
        import psycopg
    except ImportError as exc:
        raise missing_extra("format('postgres_cdc')", "postgres", "psycopg") from exc
    return psycopg


def _quote(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _parse_url(url: str) -> dict[str, str]:
    driver = _import_psycopg()
    if not url.startswith(("postgresql://", "postgres://")):
        raise _url_error(
            "does not begin with postgresql://", "Write postgresql://user@host:5432/database"
        )
    parsed: dict[str, Any] | None = None
    with contextlib.suppress(driver.Error):
        parsed = driver.conninfo.conninfo_to_dict(url)
    if parsed is None:
        # libpq's error is not even chained: it quotes what it does not like, perhaps the password.
        raise _url_error(
            "cannot be read by libpq",
            "Percent-encode letters like @ : / ? # % in user and password, or use the options "
            "'user' and 'password'; parameters after ? are libpq's connection keywords",
        )
    for key in _REFUSED_KEYS.keys() & parsed.keys():
        raise _url_error(f"has the parameter '{key}'", f"Leave it out: {_REFUSED_KEYS[key]}")
    return {key: str(value) for key, value in parsed.items()}


def _url_error(fact: str, remedy: str) -> OptionError:
    return OptionError("URL_INVALID", "Option 'url'", fact, remedy)


def _environment() -> dict[str, str]:
    """Give what libpq's environment variables and PGSERVICE say, without compiled-in defaults."""
    found: dict[str, str] = {}
    for option in _import_psycopg().pq.Conninfo.get_defaults():
        if option.val is not None and option.val != option.compiled:
            found[option.keyword.decode()] = option.val.decode()
    for key in (*_REFUSED_KEYS, "servicefile"):
        found.pop(key, None)
    return found


def _from_passfile(known: Mapping[str, str]) -> str | None:
    path = Path(known["passfile"]) if "passfile" in known else Path.home() / ".pgpass"
    hosts = (known.get("host") or known.get("hostaddr") or "localhost").split(",")
    ports = known.get("port", "5432").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    found = {
        # A Unix socket counts as localhost, as with libpq.
        look_up(
            path,
            "localhost" if host.startswith("/") else host,
            port or "5432",
            known["dbname"],
            known.get("user", ""),
        )
        for host, port in zip(hosts, ports, strict=False)
    }
    if len(found) > 1:
        raise _url_error(
            "names several hosts for which the password file has different passwords",
            "Set option 'password', or give the hosts one password",
        )
    return found.pop()
