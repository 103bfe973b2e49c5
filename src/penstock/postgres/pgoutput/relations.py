"""Tables as the stream describes them, and the other rare messages; pure.

A Relation message comes before the first use of a table and again when its definition changes.
It knows nothing of nullability, defaults or the primary key: those are in the catalog.
Messages of these kinds are few, so they are read one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from penstock.errors import SchemaError
from penstock.postgres.pgoutput.messages import ORIGIN, TYPE, Messages, malformed

# Set in the flags of a column that is part of the replica identity.
_KEY_FLAG = 1


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column."""

    name: str
    type_oid: int
    typmod: int
    # Part of the replica identity; with replica identity FULL that is every column.
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's definition at one point of the stream; another definition is another value."""

    oid: int
    schema: str
    name: str
    # 'd' default, 'n' nothing, 'f' full, 'i' index.
    replica_identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def full_name(self) -> str:
        """As people write it, for messages; never for SQL."""
        return f"{self.schema}.{self.name}"

    def key_indexes(self, primary_key: Collection[str]) -> tuple[int, ...]:
        """Give the columns that say whether an update changed the key.

        Raises:
            SchemaError: the table no longer has a column of the primary key.
        """
        if self.replica_identity != "f":
            return tuple(i for i, column in enumerate(self.columns) if column.is_key)
        names = [column.name for column in self.columns]
        missing = sorted(set(primary_key) - set(names))
        if missing:
            raise SchemaError(
                "CDC_KEY_COLUMN_MISSING",
                f"Table {self.full_name}",
                f"the stream does not carry the column {missing[0]!r} of its primary key",
                "Restart the query, so that it reads the table's definition again; a column list "
                "of the publication must include the primary key",
            )
        return tuple(names.index(name) for name in primary_key)


class _Fields:
    """Reads one message from left to right."""

    def __init__(self, what: str, body: bytes) -> None:
        self._what = what
        self._body = body
        self._at = 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(layout, self._body, self._at)
        except struct.error:
            raise malformed(f"a {self._what} message ends too early") from None
        self._at += struct.calcsize(layout)
        return values

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise malformed(f"a {self._what} message ends too early")
        piece, self._at = self._body[self._at : end], end + 1
        try:
            return piece.decode()
        except UnicodeDecodeError:
            raise malformed(f"a name in a {self._what} message is not UTF-8") from None

    def end(self) -> None:
        if self._at != len(self._body):
            raise malformed(f"a {self._what} message is longer than its content")


def parse_relation(body: bytes) -> Relation:
    """Read a Relation message.

    Raises:
        WireError: it is not one.
    """
    fields = _Fields("Relation", body)
    (oid,) = fields.numbers(">I")
    # The server sends an empty name for pg_catalog.
    schema = fields.text() or "pg_catalog"
    name = fields.text()
    identity, count = fields.numbers(">BH")
    if identity not in b"dnfi":
        raise malformed(f"a Relation message has the unknown replica identity {chr(identity)!a}")
    columns = []
    for _ in range(count):
        (flags,) = fields.numbers(">B")
        column = fields.text()
        type_oid, typmod = fields.numbers(">Ii")
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & _KEY_FLAG)))
    fields.end()
    return Relation(oid, schema, name, chr(identity), tuple(columns))


def parse_truncate(body: bytes) -> list[int]:
    """Read the oids of a Truncate message.

    Raises:
        WireError: it is not one.
    """
    fields = _Fields("Truncate", body)
    count, _options = fields.numbers(">IB")
    if count * 4 != len(body) - 5:
        raise malformed("a Truncate message is not as long as its number of tables says")
    return list(fields.numbers(f">{count}I"))


def check_unused(messages: Messages, number: int) -> None:
    """Check a message that makes no rows, so that damage is not passed over.

    Raises:
        WireError: it is not what its first byte says.
    """
    kind = int(messages.kinds[number])
    if kind == ORIGIN:
        fields = _Fields("Origin", messages.body(number))
        fields.numbers(">Q")
        fields.text()
    elif kind == TYPE:
        fields = _Fields("Type", messages.body(number))
        fields.numbers(">I")
        fields.text()
        fields.text()
    else:
        fields = _Fields("logical", messages.body(number))
        fields.numbers(">BQ")
        fields.text()
        (length,) = fields.numbers(">I")
        fields.numbers(f">{length}x")
    fields.end()
