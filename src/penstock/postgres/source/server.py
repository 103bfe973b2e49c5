"""The driver's side of a stream: one control connection, and what is done over it.

Runs on the driver, in the one process that plans batches. What passes by itself (a server that
restarts, a slot that is busy) is tried again until `retryTimeout`; everything else ends the query.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConnectError, PenstockError, ResourceError
from penstock.postgres.catalog import missing_relations, read_table, read_tables
from penstock.postgres.connection import ConnectionSettings, connect_control
from penstock.postgres.errors import is_transient
from penstock.postgres.model import Table
from penstock.postgres.options import PostgresCdcOptions, PostgresReadOptions
from penstock.postgres.privileges import check_privileges
from penstock.postgres.publication import (
    Publication,
    drop_publication,
    ensure_publication,
    read_publication,
)
from penstock.postgres.server import ServerFacts, check_can_stream, current_lsn, server_facts
from penstock.postgres.slot import (
    CreatedSlot,
    SlotState,
    advance_slot,
    create_slot,
    drop_slot,
    has_changes,
    inspect_slot,
)
from penstock.postgres.slot_position import check_position, check_usable
from penstock.postgres.snapshot import plan_ranges, relation_leaves, snapshot_select
from penstock.postgres.source.columns import plan_table, sent_columns
from penstock.postgres.source.plans import ManyTables, OneTable, StreamPlan
from penstock.postgres.source.task import SnapshotPartition
from penstock.retry import Backoff

if TYPE_CHECKING:
    import psycopg

_LOG = logging.getLogger(__name__)
# Spark gives the process of a stopped query a little time only.
_DROP_SECONDS = 12.0
Value = TypeVar("Value")


def connection_settings(options: PostgresReadOptions) -> ConnectionSettings:
    """Read how to reach the server from the options."""
    return ConnectionSettings.parse(
        options.url,
        user=options.user,
        password=options.password,
        sslmode=options.sslmode,
        sslrootcert=options.sslrootcert,
        sslcert=options.sslcert,
        sslkey=options.sslkey,
        connect_timeout_seconds=options.connect_timeout,
    )


def load_plan(
    connection: psycopg.Connection[Any], options: PostgresCdcOptions
) -> tuple[StreamPlan, Publication | None]:
    """Look the tables and the publication up, and decide on the columns."""
    facts = server_facts(connection)
    publication = read_publication(connection, options.publication_name, facts.version)
    if options.tables is None:
        table = read_table(connection, str(options.table))
        return OneTable(plan_table(table, publication, facts.version, options)), publication
    tables = read_tables(connection, options.tables)
    columns = tuple(
        tuple(column.name for column in sent_columns(table, publication, facts.version))
        for table in tables
    )
    return ManyTables(options.tables, tables, columns, options.meta_prefix), publication


def snapshot_partitions(
    connection: psycopg.Connection[Any],
    options: PostgresCdcOptions,
    plan: StreamPlan,
    publication: Publication | None,
    created: CreatedSlot | None,
    version: int,
) -> list[SnapshotPartition]:
    """Cut the tables into ranges, of which each is a task."""
    most = options.snapshot_partitions or 2 * (os.cpu_count() or 1)
    leaves = [(table, leaf) for table in plan.tables for leaf in relation_leaves(connection, table)]
    blocks = sum(leaf.blocks for _, leaf in leaves) or 1
    settings = connection_settings(options)
    return [
        SnapshotPartition(
            settings=settings,
            plan=plan,
            table=table,
            select=snapshot_select(
                plan.snapshot_expressions(table),
                leaf.schema,
                leaf.name,
                block_range,
                row_filter(publication, table),
            ),
            snapshot_name=None if created is None else created.snapshot_name,
            lsn=None if created is None else created.consistent_lsn,
            version=version,
        )
        for table, leaf in leaves
        for block_range in plan_ranges(leaf.blocks, max(1, round(most * leaf.blocks / blocks)))
    ]


def row_filter(publication: Publication | None, table: Table) -> str | None:
    """Give the condition that a publication puts on the rows of a table."""
    published = publication.table(table.oid) if publication is not None else None
    return None if published is None else published.row_filter


class StreamServer:
    """What the planning reader does at the server."""

    def __init__(self, options: PostgresCdcOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._settings = connection_settings(options)
        self._connection: psycopg.Connection[Any] | None = None
        self._created: CreatedSlot | None = None
        # Of the snapshot that is being read.
        self._ranges: list[SnapshotPartition] | None = None
        self.facts: ServerFacts = self._try(server_facts)
        check_can_stream(self.facts, needs_new_slot=False)
        self.plan, self._publication = self._try(lambda connection: load_plan(connection, options))

    @property
    def settings(self) -> ConnectionSettings:
        """How tasks reach the server."""
        return self._settings

    def _try(self, action: Callable[[psycopg.Connection[Any]], Value]) -> Value:
        end = self._clock.monotonic() + self._options.retry_timeout
        for wait in Backoff(first_seconds=0.2, longest_seconds=10.0):
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = connect_control(self._settings)
                return action(self._connection)
            except PenstockError as exc:
                cause = exc.__cause__
                if cause is None or not is_transient(cause):
                    raise
                if self._clock.monotonic() + wait > end:
                    raise
                _LOG.warning("trying again in %.1f s: %s", wait, exc)
                self._disconnect()
                self._clock.wait(wait)
        raise AssertionError("a backoff has no end")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def prepare(self) -> None:
        """Check what the stream needs before anything heavy, and make the publication.

        Raises:
            PenstockError: a privilege, a setting or the publication is not as it has to be.
        """
        options, tables = self._options, self.plan.tables
        is_streaming = options.snapshot_mode != "only"

        def check(connection: psycopg.Connection[Any]) -> Publication | None:
            name = options.publication_name
            found = read_publication(connection, name, self.facts.version)
            check_privileges(
                connection,
                tables,
                needs_replication=is_streaming,
                needs_publication=is_streaming and found is None,
            )
            if not is_streaming:
                return found
            return ensure_publication(connection, name, tables, self.facts.version)

        self._publication = self._try(check)

    def check_tables(self) -> None:
        """Check that the tables are still those that the query was started with.

        Raises:
            ResourceError: one was dropped, and perhaps made again: that is another table.
        """
        oids = [table.oid for table in self.plan.tables]
        gone = self._try(lambda connection: missing_relations(connection, oids))
        for table in self.plan.tables:
            if table.oid in gone:
                raise ResourceError(
                    "TABLE_GONE",
                    f"Table '{table.full_name}'",
                    "was dropped while the query ran; one that was made again under its name is "
                    "another table to PostgreSQL, and not in the publication",
                    "Start a query with a new checkpointLocation and a new slot for the new table, "
                    f"and drop slot '{self._options.slot_name}', which holds WAL",
                )

    def slot(self) -> SlotState | None:
        """Look at the slot."""
        name = self._options.slot_name
        return self._try(lambda connection: inspect_slot(connection, name, self.facts.version))

    def check_free(self) -> None:
        """Check that a slot can be made under this name.

        Raises:
            ResourceError: there is one already.
        """
        name = self._options.slot_name
        if self.slot() is None:
            check_can_stream(self.facts, needs_new_slot=True)
            return
        raise ResourceError(
            "SLOT_EXISTS",
            f"Slot '{name}'",
            "exists already, and this query has no checkpoint yet: it is another query's, or one "
            "that is gone has left it",
            "Set option 'slot' to another name; or drop it, on the server with "
            f"pg_drop_replication_slot('{name}'); or set snapshotMode=never to go on from where "
            "it stands, without a snapshot",
        )

    def reuse_or_create(self) -> int:
        """Make the slot without a snapshot, or take the one that is there; gives its position."""
        name = self._options.slot_name
        found = self.slot()
        if found is not None:
            check_usable(found, self._settings.database)
            return found.confirmed_flush_lsn or 0
        check_can_stream(self.facts, needs_new_slot=True)
        created = create_slot(
            self._settings,
            name,
            self.facts.version,
            exports=False,
            failover=self._options.failover_slot,
            lock_timeout_seconds=self._options.lock_timeout,
        )
        return created.consistent_lsn

    def begin_snapshot(self) -> list[SnapshotPartition]:
        """Make the slot anew, and cut the table as it is at the moment the stream begins.

        A slot of an earlier run of the same batch is dropped: its snapshot is gone. A query that
        uses the stream twice (a self-join) asks twice, and gets the same.
        """
        if self._ranges is not None:
            return self._ranges
        options = self._options
        if options.snapshot_mode != "only":
            self._try(lambda connection: drop_slot(connection, options.slot_name))
            self._created = create_slot(
                self._settings,
                options.slot_name,
                self.facts.version,
                failover=options.failover_slot,
                lock_timeout_seconds=options.lock_timeout,
            )
        self._ranges = self._try(
            lambda connection: snapshot_partitions(
                connection,
                options,
                self.plan,
                self._publication,
                self._created,
                self.facts.version,
            )
        )
        return self._ranges

    def end_snapshot(self) -> None:
        """Let the snapshot go."""
        self._ranges = None
        if self._created is not None:
            self._created.close()
            self._created = None

    def check_position(self, lsn: int, system: str) -> None:
        """Check that the slot still has everything from a position on.

        Raises:
            DataLossError: it has not.
        """
        state = self.slot()
        check_position(
            state,
            self._try(server_facts),
            name=self._options.slot_name,
            database=self._settings.database,
            lsn=lsn,
            system_identifier=system,
        )

    def check_after_snapshot(self, system: str) -> None:
        """Check the slot when the stream has not begun yet, and its position is all there is.

        Raises:
            DataLossError: it is gone, or of another server.
        """
        self.check_position(self.slot_lsn(), system)

    def slot_lsn(self) -> int:
        """Give the position up to which the server may forget."""
        state = self.slot()
        return 0 if state is None else state.confirmed_flush_lsn or 0

    def current_lsn(self) -> int:
        """Give the end of the WAL that is safely on disk."""
        return self._try(current_lsn)

    def has_changes(self, upto: int) -> bool:
        """Tell whether the stream has any row before a position."""
        options = self._options
        return self._with_slot(
            lambda connection: has_changes(
                connection, options.slot_name, options.publication_name, upto, self.facts.version
            )
        )

    def advance(self, lsn: int) -> None:
        """Let the server forget what is before a position: it is in the sink, and committed."""
        name, patience = self._options.slot_name, self._options.retry_timeout
        self._with_slot(
            lambda connection: advance_slot(connection, name, lsn, patience_seconds=patience)
        )

    def _with_slot(self, action: Callable[[psycopg.Connection[Any]], Value]) -> Value:
        """Do something with the slot; if it cannot be used any more, say why."""
        try:
            return self._try(action)
        except PenstockError:
            state = self.slot()
            if state is not None:
                check_usable(state, self._settings.database)
            raise

    def drop(self) -> None:
        """Drop slot and publication; the query has ended for good.

        Over a connection of its own: the other one may be in the middle of a statement.
        """
        options = self._options
        self.end_snapshot()
        with closing(connect_control(self._settings)) as connection:
            self._drop_slot(connection)
            # One that the user has named may be the user's own.
            if options.publication is None:
                drop_publication(connection, options.publication_name)

    def _drop_slot(self, connection: psycopg.Connection[Any]) -> None:
        """Drop the slot; a task that Spark is about to end may still read it."""
        end = self._clock.monotonic() + _DROP_SECONDS
        for wait in Backoff(first_seconds=0.1, longest_seconds=1.0):
            try:
                drop_slot(connection, self._options.slot_name)
            except ConnectError as exc:
                cause = exc.__cause__
                is_passing = cause is not None and is_transient(cause)
                if not is_passing or self._clock.monotonic() + wait > end:
                    raise
                self._clock.wait(wait)
            else:
                return

    def close(self) -> None:
        """Leave the server; slot and publication stay."""
        self.end_snapshot()
        self._disconnect()
