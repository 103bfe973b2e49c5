"""What a task does: read a range of the snapshot, or the slot; runs on executors.

Tasks change nothing on the server: they peek at the slot, which only the driver advances. So a task
can be run again at any time and gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock._core.clock import SYSTEM_CLOCK
from penstock.errors import ConnectError
from penstock.postgres.connection import (
    ConnectionSettings,
    arrow_batches,
    connect_arrow,
    untimed_session,
)
from penstock.postgres.errors import is_transient, translated
from penstock.postgres.identifiers import quote_identifier, quote_literal
from penstock.postgres.lsn import format_lsn
from penstock.postgres.model import Table
from penstock.postgres.pgoutput import Decoder, Relation
from penstock.postgres.snapshot import read_snapshot
from penstock.postgres.source.catalog_now import CatalogNow
from penstock.postgres.source.plans import Places, StreamPlan
from penstock.retry import Backoff

_BATCH_BYTES = 8 * 2**20


@dataclass
class SnapshotPartition(InputPartition):
    """A range of a table's blocks. This class must be picklable."""

    settings: ConnectionSettings
    plan: StreamPlan
    table: Table
    select: str
    # None: what is committed when the task runs.
    snapshot_name: str | None
    lsn: int | None
    # Of the server.
    version: int


@dataclass
class SlotPartition(InputPartition):
    """The transactions of a range of the WAL. This class must be picklable."""

    settings: ConnectionSettings
    plan: StreamPlan
    slot: str
    publication: str
    start_lsn: int
    end_lsn: int
    evolves: bool
    retry_seconds: float
    # Of the server.
    version: int


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Give the rows of a partition.

    Raises:
        PenstockError: the server cannot be read, or what is there is not what the query has.
    """
    if isinstance(partition, SnapshotPartition):
        return _read_snapshot(partition)
    assert isinstance(partition, SlotPartition)  # noqa: S101 - there are two kinds
    return _read_slot(partition)


def _read_snapshot(partition: SnapshotPartition) -> Iterator[pa.RecordBatch]:
    plan = partition.plan
    batches = read_snapshot(
        partition.settings,
        partition.snapshot_name,
        partition.select,
        subject=f"Table '{partition.table.full_name}'",
        session=untimed_session(partition.version),
        batch_bytes=_BATCH_BYTES,
    )
    for batch in batches:
        if batch.num_rows:
            yield plan.snapshot_batch(partition.table, batch, partition.lsn)


def peek_statement(partition: SlotPartition) -> str:
    """Write the SELECT that gives the messages of a range."""
    # The server takes a list of identifiers there, quoted as such.
    publications = quote_literal(quote_identifier(partition.publication))
    return (
        "SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes("  # noqa: S608 - quoted
        f"{quote_literal(partition.slot)}, {quote_literal(format_lsn(partition.end_lsn))}, NULL,"
        f" 'proto_version', '1', 'publication_names', {publications})"
    )


def _read_slot(partition: SlotPartition) -> Iterator[pa.RecordBatch]:
    plan = partition.plan
    places: dict[Relation, Places] = {}

    def wanted(relation: Relation) -> bool:
        now = CatalogNow(partition.settings, relation.oid)
        found = plan.match(relation, now, evolves=partition.evolves)
        if found is not None:
            places[relation] = found
        return found is not None

    decoder = Decoder(partition.start_lsn, partition.end_lsn, wanted, plan.primary_key)
    for batch in _peek(partition):
        for rows in decoder.feed(batch):
            yield plan.change_batch(rows, places[rows.relation])
    decoder.finish()


def _peek(partition: SlotPartition) -> Iterator[pa.RecordBatch]:
    """Give the messages; what passes by itself is waited for until the first of them."""
    end = SYSTEM_CLOCK.monotonic() + partition.retry_seconds
    for wait in Backoff(first_seconds=0.1, longest_seconds=5.0):
        has_begun = False
        try:
            for batch in _peek_once(partition):
                has_begun = True
                yield batch
        except ConnectError as exc:
            is_passing = exc.__cause__ is not None and is_transient(exc.__cause__)
            if has_begun or not is_passing or SYSTEM_CLOCK.monotonic() + wait > end:
                raise
            SYSTEM_CLOCK.wait(wait)
        else:
            return


def _peek_once(partition: SlotPartition) -> Iterator[pa.RecordBatch]:
    connection = connect_arrow(partition.settings, untimed_session(partition.version))
    try:
        with translated(f"Slot '{partition.slot}'"), connection.cursor() as cursor:
            cursor.adbc_statement.set_options(
                **{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)}
            )
            cursor.execute(peek_statement(partition))
            yield from arrow_batches(cursor)
    finally:
        connection.close()
