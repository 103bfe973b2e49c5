"""pgoutput the obvious way, message by message, to compare the real decoder with; and a slot.

Written from the protocol's documentation, apart from the decoder: it shares nothing with it but
the `Relation` values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa

from penstock.postgres.pgoutput import Decoder, Op, Relation, RelationColumn, RelationRows
from penstock.testing.postgres import PostgresServer

SLOT_NAME = "penstock_pgoutput"

_EPOCH_US = 946_684_800_000_000

# None is NULL (or not sent), "u" an unchanged value that was not sent.
Cell = tuple[str, str | None]


class Row(NamedTuple):
    relation: Relation
    op: str
    lsn: int
    ordinal: int
    commit_time_us: int
    xid: int
    values: tuple[str | None, ...]
    unchanged: tuple[str, ...]

    @property
    def short(self) -> tuple[str, str, dict[str, str | None]]:
        """Table, what happened, and the values that are not null."""
        names = [column.name for column in self.relation.columns]
        values = dict(zip(names, self.values, strict=True))
        return self.relation.name, self.op, {n: v for n, v in values.items() if v is not None}


class PlainDecoder:
    """One message at a time, one value at a time."""

    def __init__(
        self,
        start_lsn: int,
        end_lsn: int,
        primary_key: Callable[[Relation], Collection[str]] = lambda _relation: (),
    ) -> None:
        self._range = range(start_lsn, end_lsn)
        self._primary_key = primary_key
        self._relations: dict[int, Relation] = {}
        self._transaction: tuple[int, int, int] | None = None
        self._count = 0
        self.rows: list[Row] = []

    def feed(self, message: bytes) -> None:
        kind, body = chr(message[0]), message[1:]
        if kind == "B":
            lsn, time, xid = struct.unpack(">QqI", body)
            self._transaction, self._count = (lsn, time + _EPOCH_US, xid), 0
        elif kind == "C":
            self._transaction = None
        elif kind == "R":
            relation = _relation(body)
            self._relations[relation.oid] = relation
        elif kind in "IUDT":
            if self._transaction is not None and self._transaction[0] in self._range:
                self._change(kind, body)
            self._count += 1

    def _change(self, kind: str, body: bytes) -> None:
        if kind == "T":
            count = int.from_bytes(body[:4], "big")
            for oid in struct.unpack(f">{count}I", body[5:]):
                relation = self._relations[oid]
                self._emit(relation, "TRUNCATE", [("n", None)] * len(relation.columns), 0)
            return
        relation = self._relations[int.from_bytes(body[:4], "big")]
        tag, old, at = chr(body[4]), None, 5
        cells, at = _tuple(body, at)
        if kind == "I":
            self._emit(relation, "INSERT", cells, 0)
        elif kind == "D":
            self._emit(relation, "DELETE", cells, 0)
        else:
            if tag in "KO":
                old = cells
                cells, at = _tuple(body, at + 1)
            self._update(relation, tag, old, cells)

    def _update(
        self, relation: Relation, tag: str, old: list[Cell] | None, new: list[Cell]
    ) -> None:
        if old is None:
            self._emit(relation, "UPDATE", new, 0)
            return
        new = [o if n[0] == "u" and o[0] == "t" else n for o, n in zip(old, new, strict=True)]
        is_full = relation.replica_identity == "f"
        names = self._primary_key(relation) if is_full else ()
        for column, before, after in zip(relation.columns, old, new, strict=True):
            is_key = column.name in names if is_full else column.is_key
            is_known = (
                after[0] != "u" and before[0] != "u" and not (tag == "K" and before[0] == "n")
            )
            if is_key and is_known and before != after:
                self._emit(relation, "DELETE", old, 0)
                self._emit(relation, "INSERT", new, 1)
                return
        self._emit(relation, "UPDATE", new, 0)

    def _emit(self, relation: Relation, op: str, cells: list[Cell], half: int) -> None:
        assert self._transaction is not None
        lsn, time, xid = self._transaction
        names = [column.name for column in relation.columns]
        unchanged = tuple(n for n, cell in zip(names, cells, strict=True) if cell[0] == "u")
        values = tuple(value for _, value in cells)
        ordinal = self._count * 2 + half
        self.rows.append(Row(relation, op, lsn, ordinal, time, xid, values, unchanged))


def _tuple(body: bytes, at: int) -> tuple[list[Cell], int]:
    cells: list[Cell] = []
    (count,) = struct.unpack_from(">H", body, at)
    at += 2
    for _ in range(count):
        kind = chr(body[at])
        at += 1
        value = None
        if kind == "t":
            (length,) = struct.unpack_from(">I", body, at)
            # An old value that makes no row is nobody's concern; one that does is then not equal.
            value = body[at + 4 : at + 4 + length].decode(errors="surrogateescape")
            at += 4 + length
        cells.append((kind, value))
    return cells, at


def _relation(body: bytes) -> Relation:
    (oid,) = struct.unpack_from(">I", body)
    schema, name, rest = body[4:].split(b"\0", 2)
    identity, count = struct.unpack_from(">cH", rest)
    rest = rest[3:]
    columns = []
    for _ in range(count):
        column, tail = rest[1:].split(b"\0", 1)
        type_oid, typmod = struct.unpack_from(">Ii", tail)
        columns.append(RelationColumn(column.decode(), type_oid, typmod, bool(rest[0] & 1)))
        rest = tail[8:]
    spelled = schema.decode() or "pg_catalog"
    return Relation(oid, spelled, name.decode(), identity.decode(), tuple(columns))


def plain_rows(parts: RelationRows) -> list[Row]:
    """Spell out columns as rows."""
    names = [column.name for column in parts.relation.columns]
    values = [column.to_pylist() for column in parts.columns]
    return [
        Row(
            parts.relation,
            Op(parts.op[i]).name,
            int(parts.lsn[i]),
            int(parts.ordinal[i]),
            int(parts.commit_time_us[i]),
            int(parts.xid[i]),
            tuple(column[i] for column in values),
            tuple(n for n, mask in zip(names, parts.unchanged, strict=True) if _at(mask, i)),
        )
        for i in range(len(parts))
    ]


def _at(mask: Any, index: int) -> bool:
    return mask is not None and bool(mask[index])


def to_batch(messages: Sequence[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"data": pa.array(messages, pa.binary())})


def decode(
    batches: Iterable[pa.RecordBatch], start_lsn: int = 0, end_lsn: int = 2**64 - 1, **more: Any
) -> list[Row]:
    """Decode all, check what holds of every result, and give the rows in the order of the slot."""
    decoder = Decoder(start_lsn, end_lsn, **more)
    by_table: dict[int, list[Row]] = {}
    for batch in batches:
        for part in decoder.feed(batch):
            assert len(part) > 0
            by_table.setdefault(part.relation.oid, []).extend(plain_rows(part))
    decoder.finish()
    rows: list[Row] = []
    for table_rows in by_table.values():
        # A slot gives transactions in commit order, so that each table's rows come sorted.
        positions = [(row.lsn, row.ordinal) for row in table_rows]
        assert positions == sorted(set(positions))
        rows.extend(table_rows)
    return sorted(rows, key=lambda row: (row.lsn, row.ordinal, row.relation.oid))


class Slot:
    """A publication of all tables and a slot, with the database to themselves."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server = server
        self.database = database
        self.errors = psycopg.Error
        self.open()

    def open(self) -> None:
        self.connection: psycopg.Connection[Any] = self.server.connect(self.database)
        self.run("CREATE PUBLICATION pub FOR ALL TABLES")

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def transaction(self, *statements: str) -> None:
        with self.connection.transaction():
            self.run(*statements)

    def create(self) -> None:
        """Make the slot: what happens from now on is in it."""
        self.run(f"SELECT pg_create_logical_replication_slot('{SLOT_NAME}', 'pgoutput')")

    def peek(self, batch_bytes: int | None = None) -> list[pa.RecordBatch]:
        """Read the slot as the source does."""
        with (
            adbc_driver_postgresql.dbapi.connect(self.server.url(self.database)) as connection,
            connection.cursor() as cursor,
        ):
            if batch_bytes is not None:
                hint = adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value
                cursor.adbc_statement.set_options(**{hint: str(batch_bytes)})
            # Without parameters: only such a query is read in batches (through COPY).
            cursor.execute(
                f"SELECT data FROM pg_logical_slot_peek_binary_changes('{SLOT_NAME}', NULL, NULL,"  # noqa: S608
                " 'proto_version', '1', 'publication_names', 'pub')"
            )
            return list(cursor.fetch_record_batch())

    def messages(self) -> list[bytes]:
        return [value for batch in self.peek() for value in batch.column("data").to_pylist()]

    def rows(self, **more: Any) -> list[Row]:
        return decode(self.peek(), **more)

    def short_rows(self, **more: Any) -> list[tuple[str, str, dict[str, str | None]]]:
        return [row.short for row in self.rows(**more)]

    def close(self) -> None:
        """Leave the database empty; to make another for each test takes a second."""
        try:
            # One left behind by a test that failed would hold up the next slot for ever.
            prepared = self._texts("SELECT quote_literal(gid) FROM pg_prepared_xacts")
            schemas = self._texts(
                "SELECT quote_ident(nspname) FROM pg_namespace"
                " WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
            )
            self.run(
                *(f"ROLLBACK PREPARED {name}" for name in prepared),
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
                "DROP PUBLICATION pub",
                *(f"DROP SCHEMA {name} CASCADE" for name in schemas),
                "CREATE SCHEMA public",
            )
        finally:
            self.connection.close()

    def _texts(self, query: str) -> list[str]:
        self.connection.rollback()
        return [text for (text,) in self.connection.execute(query.encode()).fetchall()]
