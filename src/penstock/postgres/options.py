"""Options of `format("postgres_cdc")`; parsed on the driver, pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import OptionError
from penstock.options import BOOLEAN, Options, Parser, choice, duration, integer, opt, size

# What the server takes as the name of a slot.
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


def _parse_slot(value: str) -> str:
    if not _SLOT_NAME.fullmatch(value):
        raise ValueError("a slot's name: 1 to 63 lower-case letters, digits and underscores")
    return value


def _parse_name(value: str) -> str:
    if not value or "\0" in value or len(value.encode()) > 63:
        raise ValueError("a name of 1 to 63 bytes")
    return value


def _parse_prefix(value: str) -> str:
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value


SLOT = Parser("name", _parse_slot)
NAME = Parser("name", _parse_name)
PREFIX = Parser("text", _parse_prefix)


@dataclass(frozen=True, kw_only=True)
class PostgresReadOptions(Options):
    """What the batch read and the stream share: the server, the table, its types."""

    USE: ClassVar[str] = 'spark.read.format("postgres_cdc")'

    url: str = opt(
        "The database, as libpq writes it: postgresql://user@host:5432/database, with libpq's "
        "parameters after a question mark. What it does not say comes from the environment of "
        "the driver (PGUSER, PGSSLMODE, ...).",
        example="postgresql://replicator@db.example.com/shop?sslmode=verify-full",
        # It may hold a password.
        secret=True,
    )
    table: str | None = opt(
        "The table to read: `schema.table`, with double quotes where SQL needs them. Without a "
        "schema it is one of `public`.",
        default=None,
        example="public.orders",
    )
    user: str | None = opt("The role to connect as.", default=None, example="replicator")
    password: str | None = opt(
        "Its password. Without it: PGPASSWORD, then the password file (PGPASSFILE or ~/.pgpass), "
        "both of the driver.",
        default=None,
        secret=True,
    )
    sslmode: str | None = opt(
        "Whether the connection is encrypted and the server's certificate checked. Use "
        "verify-full on any network that is not yours.",
        choice("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        default=None,
    )
    sslrootcert: str | None = opt(
        "File with the certificates of authorities, on the driver and on every executor.",
        default=None,
        example="/etc/ssl/shop-ca.pem",
    )
    sslcert: str | None = opt(
        "File with the client's certificate.", default=None, advanced=True, example="client.crt"
    )
    sslkey: str | None = opt(
        "File with the client's key.", default=None, advanced=True, example="client.key"
    )
    connect_timeout: float = opt(
        "Longest wait for a connection.", duration(1.0, 600.0), default=10.0, advanced=True
    )
    publication: str | None = opt(
        "Publication of the stream. It is made when it is missing. One that is there is used if "
        "it publishes the table with all operations; its row filter and column list also hold "
        "for the snapshot. Without this option: the slot's name.",
        NAME,
        default=None,
        example="orders_pub",
    )
    out_of_range: str = opt(
        "What becomes of values that PostgreSQL has and Spark has not (infinite dates, NaN in a "
        "decimal): the query fails, they become null, or dates and timestamps become the "
        "nearest that Spark has (clamp). See docs/postgres-types.md.",
        choice("fail", "null", "clamp"),
        default="fail",
    )
    unbounded_numeric: str = opt(
        "The Spark type of a numeric without precision, or with more than 38 digits: its text, "
        "or decimal(38,18).",
        choice("string", "decimal"),
        default="string",
    )
    nested: str = opt(
        "Arrays, composites and hstore as Spark's array, struct and map (typed), or as "
        "PostgreSQL's text.",
        choice("typed", "string"),
        default="typed",
    )
    meta_prefix: str = opt(
        "What the names of the added columns begin with: _op, _lsn and so on.",
        PREFIX,
        default="_",
        advanced=True,
    )

    def check(self) -> None:
        """Check that a table is named.

        Raises:
            OptionError: none is.
        """
        if self.table is None:
            raise _missing_table(self.USE)


def _missing_table(use: str) -> OptionError:
    return OptionError(
        "OPTION_MISSING",
        f"Option 'table' of {use}",
        "is not set",
        'Add .option("table", "public.orders")',
    )


@dataclass(frozen=True, kw_only=True)
class PostgresCdcOptions(PostgresReadOptions):
    """Options of the streaming read."""

    USE: ClassVar[str] = 'spark.readStream.format("postgres_cdc")'

    tables: str | None = opt(
        "Instead of `table`: many tables in one stream and one slot, as names and patterns with * "
        "and ?, separated by commas. Rows then have the table's name and their values as texts by "
        "column; penstock.postgres.tables.typed_table gives a table its columns and types.",
        default=None,
        example="public.*, sales.order_?",
    )

    slot: str | None = opt(
        "Replication slot of the stream. One query, one slot: it holds the server's WAL until "
        "the query has committed it. Without this option: made from the table's name.",
        SLOT,
        default=None,
        example="orders_to_lake",
    )
    snapshot_mode: str = opt(
        "What a query without a checkpoint begins with: the rows of the table, then its changes "
        "from exactly that moment on (initial); changes only (never); rows only, without a slot "
        "(only).",
        choice("initial", "never", "only"),
        default="initial",
    )
    snapshot_partitions: int | None = opt(
        "Into how many ranges of blocks the snapshot is cut, each a task with a connection of its "
        "own. Without it: twice the cores of the cluster, or of this machine.",
        integer(1, 10_000),
        default=None,
    )
    on_slot_lost: str = opt(
        "When the slot no longer has what the checkpoint needs (dropped, invalidated, recreated, "
        "advanced by something else): end the query with an error, or begin again with a new "
        "slot and a new snapshot. With resnapshot the rows come again with _op = snapshot, and "
        "deletes of the gap are not seen.",
        choice("fail", "resnapshot"),
        default="fail",
    )
    on_schema_change: str = opt(
        "When rows of the WAL do not have the columns that the query was started with: end it "
        "with an error that names the change (fail); or, at a restart, read what was written "
        "before the change by name: columns dropped since are left out, types that were widened "
        "are read as the wider ones (evolve). A column added under a running query ends it "
        "either way.",
        choice("fail", "evolve"),
        default="fail",
    )
    max_wal_bytes_per_trigger: int | None = opt(
        "About the most WAL that one micro-batch reads. A transaction is never cut.",
        size(8192),
        default=None,
        example="256MiB",
    )
    heartbeat_interval: float = opt(
        "How often the slot is moved on when the WAL grows without changes of this table. Each "
        "time costs one empty micro-batch.",
        duration(1.0),
        default=30.0,
    )
    drop_on_stop: bool = opt(
        "Drop the slot, and the publication unless it is named by an option, when the query ends: "
        "when it is stopped, and also when it fails, because Spark does not tell the two apart. "
        "Only a driver that dies leaves them. For experiments.",
        BOOLEAN,
        default=False,
    )
    failover_slot: bool = opt(
        "Make a slot that is synchronised to standbys (PostgreSQL 17 and later).",
        BOOLEAN,
        default=False,
        advanced=True,
    )
    lock_timeout: float = opt(
        "Longest wait for transactions that are open when the slot is made.",
        duration(0.1),
        default=60.0,
        advanced=True,
    )
    retry_timeout: float = opt(
        "How long a server that is away, or a slot that is busy, is waited for.",
        duration(0.0),
        default=120.0,
        advanced=True,
    )
    metrics_port: int | None = opt(
        "Port on the driver that answers GET /metrics for Prometheus.",
        integer(1, 65535),
        default=None,
        advanced=True,
    )

    def check(self) -> None:
        """Check what goes together.

        Raises:
            OptionError: two options contradict each other, or what to read is not said.
        """
        if self.tables is None:
            super().check()
        elif self.table is not None:
            raise OptionError(
                "OPTION_CONFLICT",
                f"Options 'table' and 'tables' of {self.USE}",
                "are both set",
                "Keep one of them",
            )
        if self.snapshot_mode == "only" and self.drop_on_stop:
            raise OptionError(
                "OPTION_CONFLICT",
                f"Option 'dropOnStop' of {self.USE}",
                "snapshotMode=only has no slot that could be dropped",
                "Leave one of them out",
            )

    @property
    def slot_name(self) -> str:
        """The slot, as named or made from the table's name."""
        if self.slot is not None:
            return self.slot
        words = re.sub(r"[^a-z0-9]+", "_", self.subject.lower()).strip("_")
        return f"penstock_{words}"[:63].rstrip("_")

    @property
    def subject(self) -> str:
        """What is read, as the user has written it."""
        return self.tables or self.table or ""

    @property
    def publication_name(self) -> str:
        """The publication, as named or that of the slot."""
        return self.publication or self.slot_name
