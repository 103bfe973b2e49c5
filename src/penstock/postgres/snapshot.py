"""The snapshot of a table: cut into ranges on the driver, read as Arrow in tasks.

Every range is read in a transaction of its own with one exported snapshot, so together they are
the table at one moment, whatever happens to it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ResourceError
from penstock.postgres.connection import ConnectionSettings, arrow_batches, connect_arrow
from penstock.postgres.errors import is_driver_error, sqlstate, translated
from penstock.postgres.identifiers import quote_literal, quote_qualified
from penstock.postgres.model import Table

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from adbc_driver_manager import dbapi

# A snapshot whose holder has gone: unknown since 17, and of a wrong form before.
_SNAPSHOT_STATES = ("42704", "22023")
_REPEATABLE = {"default_transaction_isolation": "repeatable read"}


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Some blocks of a relation; the last range has no end, because the relation may grow."""

    start: int
    end: int | None

    def condition(self) -> str:
        """Write it as a condition on ctid, which the server answers without reading more."""
        upper = "" if self.end is None else f" AND ctid < '({self.end},0)'::tid"
        return f"ctid >= '({self.start},0)'::tid{upper}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A relation that holds rows: a table, or a partition of one."""

    oid: int
    schema: str
    name: str
    blocks: int


def plan_ranges(blocks: int, partitions: int) -> tuple[BlockRange, ...]:
    """Cut a relation into at most so many ranges of about the same size.

    Every block there is, and every one to come, is in exactly one range.
    """
    count = max(1, min(partitions, blocks))
    starts = [blocks * index // count for index in range(count)]
    ends: list[int | None] = [*starts[1:], None]
    return tuple(BlockRange(start, end) for start, end in zip(starts, ends, strict=True))


def relation_leaves(connection: psycopg.Connection[Any], table: Table) -> tuple[Leaf, ...]:
    """Give the relations that hold a table's rows, and how large each is.

    Raises:
        ResourceError: one of its partitions is a foreign table.
    """
    if table.kind == "p":
        source = "pg_partition_tree(%s::oid::regclass) t JOIN pg_class c ON c.oid = t.relid"
        condition = "t.isleaf AND c.relkind <> 'p'"
    else:
        source, condition = "pg_class c", "c.oid = %s"
    with translated(f"Table '{table.full_name}'"):
        rows = connection.execute(
            (
                "SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text,"  # noqa: S608
                " coalesce(pg_relation_size(c.oid) / current_setting('block_size')::int, 0)"
                f" FROM {source} JOIN pg_namespace n ON n.oid = c.relnamespace"
                f" WHERE {condition} ORDER BY c.oid"
            ).encode(),
            [table.oid],
        ).fetchall()
    for _, schema, name, kind, _ in rows:
        if kind == "f":
            raise ResourceError(
                "TABLE_UNFIT",
                f"Table '{table.full_name}'",
                f"its partition '{schema}.{name}' is a foreign table: its changes are not in this "
                "server's WAL",
                "Detach the partition, or name the other partitions in option 'tables'",
            )
    return tuple(Leaf(oid, schema, name, blocks) for oid, schema, name, _, blocks in rows)


def relation_blocks(connection: psycopg.Connection[Any], table: Table) -> int:
    """Give the size of a table in blocks, partitions included."""
    return sum(leaf.blocks for leaf in relation_leaves(connection, table))


def snapshot_select(
    expressions: Sequence[str],
    schema: str,
    name: str,
    block_range: BlockRange | None = None,
    row_filter: str | None = None,
) -> str:
    """Write the SELECT of a range.

    Args:
        expressions: SQL of each output column, names in it quoted.
        schema: of the relation that holds the rows.
        name: of that relation.
        block_range: which blocks; all of them by default.
        row_filter: the publication's condition on rows, as the catalog writes it.
    """
    conditions = [] if block_range is None else [block_range.condition()]
    if row_filter is not None:
        conditions.append(f"({row_filter})")
    where = " WHERE " + " AND ".join(conditions) if conditions else ""
    # ONLY: rows of tables that inherit from it are not in its stream either.
    target = quote_qualified(schema, name)
    return f"SELECT {', '.join(expressions)} FROM ONLY {target}{where}"  # noqa: S608 - all quoted


def read_snapshot(
    settings: ConnectionSettings,
    snapshot_name: str | None,
    select: str,
    *,
    subject: str = "The snapshot",
    session: Mapping[str, str] | None = None,
    batch_bytes: int = 8 * 2**20,
) -> Iterator[pa.RecordBatch]:
    """Run a SELECT in an exported snapshot and give its rows as they come; in a task.

    Args:
        settings: of the database that the snapshot was exported in.
        snapshot_name: as exported; None reads what is committed now.
        select: as `snapshot_select` writes it.
        subject: what it is about, for errors: "Table 'public.orders'".
        session: more settings of the session.
        batch_bytes: about how large each batch is.

    Raises:
        ResourceError: the snapshot is not there any more (code SNAPSHOT_GONE).
    """
    connection = connect_arrow(settings, {**_REPEATABLE, **(session or {})})
    try:
        with translated(subject), connection.cursor() as cursor:
            if snapshot_name is not None:
                _enter_snapshot(cursor, snapshot_name, subject)
            cursor.adbc_statement.set_options(
                **{"adbc.postgresql.batch_size_hint_bytes": str(batch_bytes)}
            )
            cursor.execute(select)
            yield from arrow_batches(cursor)
    finally:
        connection.close()


def _enter_snapshot(cursor: dbapi.Cursor, name: str, subject: str) -> None:
    try:
        # The first statement of the transaction; ADBC has begun it by itself.
        cursor.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(name)}")
    except Exception as exc:
        if not is_driver_error(exc) or sqlstate(exc) not in _SNAPSHOT_STATES:
            raise
        raise ResourceError(
            "SNAPSHOT_GONE",
            subject,
            "the snapshot that its rows are read in does not exist any more: the driver that held "
            "it has ended, or the server was restarted",
            "Start the query again: it takes a new snapshot",
        ) from exc
