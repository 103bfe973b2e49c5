"""The replication slot of a stream: looked at, made, advanced, dropped; runs on the driver.

A slot holds WAL until it is advanced, and can be read again until then. What its position means
for a query is `slot_position`'s business.
"""

from __future__ import annotations

import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConnectError, DataLossError, ResourceError
from penstock.postgres.connection import (
    ConnectionSettings,
    connect_replication,
    untimed_session,
)
from penstock.postgres.errors import is_driver_error, sqlstate, translated
from penstock.postgres.identifiers import quote_identifier
from penstock.postgres.lsn import format_lsn, parse_lsn
from penstock.retry import Backoff

if TYPE_CHECKING:
    import psycopg

PLUGIN = "pgoutput"
_FAILOVER_SINCE = 170_000
_OBJECT_IN_USE = "55006"
_LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as the server has it now; what its version does not tell is None."""

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    active_pid: int | None
    # reserved, extended, unreserved (may be lost at the next checkpoint) or lost.
    wal_status: str | None
    safe_wal_size: int | None
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    two_phase: bool
    # 16 and later; on a standby.
    conflicting: bool | None
    # 17 and later.
    invalidation_reason: str | None
    failover: bool | None
    synced: bool | None
    # How much WAL it holds on the server.
    wal_bytes: int | None
    # Since the statistics were reset: transactions that outgrew logical_decoding_work_mem.
    spill_txns: int
    spill_count: int
    spill_bytes: int
    total_txns: int
    total_bytes: int


def slot_query(version: int) -> str:
    """Write the SQL for the state of a slot by its name."""
    conflicting = "s.conflicting" if version >= 160_000 else "NULL::bool"
    since_17 = (
        "s.invalidation_reason, s.failover, s.synced"
        if version >= _FAILOVER_SINCE
        else "NULL::text, NULL::bool, NULL::bool"
    )
    return (
        "SELECT s.slot_name, s.plugin, s.slot_type, s.database, s.active_pid, s.wal_status,"  # noqa: S608
        " s.safe_wal_size, s.restart_lsn::text, s.confirmed_flush_lsn::text, s.two_phase,"
        f" {conflicting}, {since_17},"
        " pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
        "  ELSE pg_current_wal_lsn() END, s.restart_lsn)::int8,"
        " coalesce(t.spill_txns, 0), coalesce(t.spill_count, 0), coalesce(t.spill_bytes, 0),"
        " coalesce(t.total_txns, 0), coalesce(t.total_bytes, 0)"
        " FROM pg_replication_slots s LEFT JOIN pg_stat_replication_slots t USING (slot_name)"
        " WHERE s.slot_name = %s"
    )


def create_command(name: str, version: int, *, exports: bool, failover: bool) -> str:
    """Write the replication command that makes a slot; the syntax has changed with 15.

    Raises:
        ResourceError: a failover slot is wanted of a server that has none.
    """
    quoted = quote_identifier(name)
    if failover and version < _FAILOVER_SINCE:
        raise ResourceError(
            "FAILOVER_UNSUPPORTED",
            f"Slot '{name}'",
            f"the server is PostgreSQL {version // 10_000}, which has no failover slots",
            "Leave option 'failoverSlot' out, or use PostgreSQL 17 or later",
        )
    if version < 150_000:
        snapshot = "EXPORT_SNAPSHOT" if exports else "NOEXPORT_SNAPSHOT"
        return f"CREATE_REPLICATION_SLOT {quoted} LOGICAL {PLUGIN} {snapshot}"
    options = f"SNAPSHOT '{'export' if exports else 'nothing'}'" + (", FAILOVER" * failover)
    return f"CREATE_REPLICATION_SLOT {quoted} LOGICAL {PLUGIN} ({options})"


def inspect_slot(connection: psycopg.Connection[Any], name: str, version: int) -> SlotState | None:
    """Look at a slot; None where there is none of this name."""
    with translated(f"Slot '{name}'"):
        row = connection.execute(slot_query(version).encode(), [name]).fetchone()
    if row is None:
        return None
    lsns = [None if text is None else parse_lsn(text) for text in row[7:9]]
    return SlotState(*row[:7], *lsns, *row[9:])


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot, and the snapshot of exactly the moment its stream begins.

    The snapshot lasts as long as this object is open, and no statement may run on its connection.
    """

    name: str
    # Transactions that ended before it are in the snapshot, all others are in the stream.
    consistent_lsn: int
    # None where no snapshot was asked for.
    snapshot_name: str | None
    connection: psycopg.Connection[Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the server still holds the snapshot, as far as its connection tells."""
        if self.connection is None or self.connection.closed:
            return False
        libpq = self.connection.pgconn
        try:
            # A server that ends it says so and closes: words first, then the end of the stream.
            while select.select([libpq.socket], [], [], 0)[0]:
                libpq.consume_input()
        except Exception as exc:
            if not is_driver_error(exc):
                raise
            return False
        return True

    def close(self) -> None:
        """Let the snapshot go; the slot stays."""
        if self.connection is not None:
            self.connection.close()

    def __enter__(self) -> CreatedSlot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_slot(
    settings: ConnectionSettings,
    name: str,
    version: int,
    *,
    exports: bool = True,
    failover: bool = False,
    lock_timeout_seconds: float = 60.0,
) -> CreatedSlot:
    """Make a slot, and by default export the snapshot that goes with it.

    The server waits for every transaction that is open now. `lock_timeout` ends that wait;
    `statement_timeout` would not. Nothing of the slot is left when it fails.

    Raises:
        ConnectError: older transactions did not end in time.
        ResourceError: a slot of this name is there, or no slot is free.
    """
    command = create_command(name, version, exports=exports, failover=failover)
    session = {
        **untimed_session(version),
        "lock_timeout": f"{max(1, round(lock_timeout_seconds * 1000))}ms",
    }
    connection = connect_replication(settings, session)
    try:
        with translated(f"Slot '{name}'", _create_remedies(lock_timeout_seconds)):
            row = connection.execute(command.encode()).fetchone()
    except BaseException:
        connection.close()
        raise
    assert row is not None  # noqa: S101 - the command answers with one row
    _, consistent, snapshot, _ = row
    if not exports:
        connection.close()
        return CreatedSlot(name, parse_lsn(consistent), None)
    return CreatedSlot(name, parse_lsn(consistent), snapshot, connection)


def _create_remedies(waited_seconds: float) -> Mapping[str, str]:
    return {
        _LOCK_NOT_AVAILABLE: (
            f"A new slot waits for open transactions, {waited_seconds:g} s at most: "  # noqa: S608
            "find them with SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid "
            "IS NOT NULL ORDER BY xact_start (and in pg_prepared_xacts), end them or wait, and "
            "start the query again"
        ),
        "42710": "Another stream has it: set option 'slot' to another name, or drop it",
        "42501": "Let the user replicate: ALTER ROLE ... REPLICATION",
    }


def advance_slot(
    connection: psycopg.Connection[Any],
    name: str,
    lsn: int,
    *,
    patience_seconds: float = 30.0,
    backoff: Backoff | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Let the server forget what ends before a position; a position it has passed is no error.

    The server goes to the end of its flushed WAL at most. A slot that another session reads is
    tried again for a while: a task of the batch before may still be at its end.

    Raises:
        ConnectError: it was busy all the time.
        DataLossError: the slot is gone.
    """
    target = format_lsn(lsn)
    # Behind its own position the server refuses to go.
    statement = (
        "SELECT CASE WHEN confirmed_flush_lsn IS NULL OR confirmed_flush_lsn < %s::pg_lsn"
        " THEN (pg_replication_slot_advance(slot_name, %s::pg_lsn)).end_lsn::text END"
        " FROM pg_replication_slots WHERE slot_name = %s"
    )
    deadline = clock.monotonic() + patience_seconds
    for wait in backoff or Backoff(first_seconds=0.05, longest_seconds=2.0):
        try:
            with translated(f"Slot '{name}'"):
                row = connection.execute(statement, [target, target, name]).fetchone()
        except ConnectError as exc:
            if exc.__cause__ is None or sqlstate(exc.__cause__) != _OBJECT_IN_USE:
                raise
            if clock.monotonic() + wait > deadline:
                raise _busy(connection, name, patience_seconds) from exc.__cause__
            clock.wait(wait)
        else:
            if row is None:
                raise DataLossError(
                    "SLOT_MISSING",
                    f"Slot '{name}'",
                    f"does not exist any more, and was to be advanced to {target}",
                    "Something dropped it: start the query again, and see what it says",
                )
            return


def _busy(connection: psycopg.Connection[Any], name: str, seconds: float) -> ConnectError:
    row = connection.execute(
        "SELECT s.active_pid, a.application_name FROM pg_replication_slots s"
        " LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s",
        [name],
    ).fetchone()
    pid, program = row or (None, None)
    holder = f"process {pid} ('{program or 'unknown'}')" if pid else "another session"
    return ConnectError(
        "SLOT_BUSY",
        f"Slot '{name}'",
        f"was in use by {holder} for {seconds:g} s",
        "One query per slot: end the other one, on the server with SELECT "
        f"pg_terminate_backend({pid or 'pid'}), or set option 'slot' to another name",
    )


def drop_slot(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a slot, if it is there; a slot in use is an error."""
    with translated(f"Slot '{name}'"):
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            [name],
        )


def has_changes_query(version: int) -> str:
    """Write the SQL that tells whether a slot has changes for a publication before a position.

    Since 15 the server sends nothing at all of a transaction that touches no published table, so
    the first transaction that it sends decides. 14 sends their begin and commit, so all are asked
    for and only inserts, updates, deletes and truncates count.
    """
    limit, condition = "1", ""
    if version < 150_000:
        limit = "NULL"
        # I, U, D, T.
        condition = " WHERE get_byte(data, 0) IN (73, 85, 68, 84)"
    return (
        "SELECT EXISTS (SELECT FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn,"  # noqa: S608
        f" {limit}, 'proto_version', '1', 'publication_names', %s){condition})"
    )


def has_changes(
    connection: psycopg.Connection[Any], name: str, publication: str, upto: int, version: int
) -> bool:
    """Tell whether a stream would give any row before a position. Costs decoding up to there."""
    with translated(f"Slot '{name}'"):
        row = connection.execute(
            has_changes_query(version).encode(),
            [name, format_lsn(upto), quote_identifier(publication)],
        ).fetchone()
    return row is not None and bool(row[0])
