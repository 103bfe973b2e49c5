"""What the server is and where its WAL stands; runs on the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ResourceError
from penstock.postgres.errors import translated
from penstock.postgres.lsn import parse_lsn

if TYPE_CHECKING:
    import psycopg

OLDEST_VERSION = 140_000
# From here on logical decoding can be switched on while wal_level is still `replica`.
_DECODES_ON_DEMAND = 190_000

_FACTS = """
SELECT current_setting('server_version_num')::int,
       (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
       current_setting('wal_level'),
       current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_replication_slots),
       pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_flush_lsn() END::text
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server at one moment."""

    # As PostgreSQL writes it: 180004 is 18.4.
    version: int
    # Made by initdb: a copy by backup or replication has the same one, another cluster has not.
    system_identifier: str
    # Goes up with each promotion.
    timeline: int
    wal_level: str
    max_replication_slots: int
    free_replication_slots: int
    is_in_recovery: bool
    # What is safely on disk; on a standby, what is replayed.
    flush_lsn: int


def server_facts(connection: psycopg.Connection[Any]) -> ServerFacts:
    """Ask a server what it is."""
    with translated("The server"):
        row = connection.execute(_FACTS).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    version, identifier, timeline, level, slots, used, in_recovery, flushed = row
    return ServerFacts(
        version=version,
        system_identifier=identifier,
        timeline=timeline,
        wal_level=level,
        max_replication_slots=slots,
        free_replication_slots=slots - used,
        is_in_recovery=in_recovery,
        flush_lsn=parse_lsn(flushed),
    )


def current_lsn(connection: psycopg.Connection[Any]) -> int:
    """Give the position up to which the WAL is safely on disk."""
    with translated("The server"):
        row = connection.execute(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_flush_lsn() END::text"
        ).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    return parse_lsn(row[0])


def check_can_stream(facts: ServerFacts, *, needs_new_slot: bool) -> None:
    """Check that changes can be read from this server at all.

    Raises:
        ResourceError: too old, not set up for logical decoding, or no slot is free.
    """
    if facts.version < OLDEST_VERSION:
        raise ResourceError(
            "SERVER_TOO_OLD",
            "The server",
            f"is PostgreSQL {facts.version // 10_000}",
            "Use PostgreSQL 14 or later",
        )
    if facts.wal_level != "logical" and facts.version < _DECODES_ON_DEMAND:
        raise ResourceError(
            "WAL_LEVEL",
            "The server",
            f"has wal_level = {facts.wal_level}, so its WAL does not say what rows changed",
            "ALTER SYSTEM SET wal_level = logical, then restart the server (on a managed service: "
            "the setting for logical replication)",
        )
    if facts.is_in_recovery and facts.version < 160_000:
        raise ResourceError(
            "STANDBY",
            "The server",
            f"is a standby of PostgreSQL {facts.version // 10_000}",
            "Connect to the primary; standbys can be read from PostgreSQL 16 on",
        )
    if needs_new_slot and facts.free_replication_slots <= 0:
        raise ResourceError(
            "SLOTS_FULL",
            "The server",
            f"has no free replication slot: all {facts.max_replication_slots} are taken",
            "Drop slots that nobody uses (SELECT * FROM pg_replication_slots WHERE NOT active), "
            "or raise max_replication_slots and restart the server",
        )
