"""What a table is, as the other modules see it: names, columns, types. Pure; runs everywhere.

Written by the catalog (driver), carried to tasks inside partitions, compared with the WAL.
This module must stay picklable and free of connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """`pg_type.typtype`, and arrays apart."""

    BASE = "b"
    ARRAY = "a"
    COMPOSITE = "c"
    DOMAIN = "d"
    ENUM = "e"
    RANGE = "r"
    MULTIRANGE = "m"


@dataclass(frozen=True, slots=True)
class PgType:
    """A type of a column, with all that is needed to read its text form."""

    oid: int
    # As in pg_type: `int4`, not `integer`; schema-qualified names are not needed to read values.
    name: str
    kind: Kind = Kind.BASE
    # As in pg_attribute.atttypmod; -1 where there is none. Of a domain: the domain's own.
    typmod: int = -1
    # Of an array its elements, of a domain its base type, of a (multi)range its bounds.
    inner: PgType | None = None
    # Of a composite its attributes in order.
    fields: tuple[tuple[str, PgType], ...] = ()
    # Between the elements of an array: `;` for box, `,` for all others.
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, in the order of the table."""

    name: str
    # pg_attribute.attnum: survives renames, is never used again.
    number: int
    type: PgType
    is_not_null: bool = False
    # Part of the replica identity: is in old rows of updates and deletes.
    is_key: bool = False
    # 's' stored, 'v' virtual (18+), '' no generated column.
    generated: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is read."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    # pg_class.relreplident: 'd' default, 'n' nothing, 'f' full, 'i' index.
    replica_identity: str = "d"
    # pg_class.relkind: 'r' table, 'p' partitioned.
    kind: str = "r"
    # The columns of the primary key, in its order.
    primary_key: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """As people write it, for messages; never for SQL."""
        return f"{self.schema}.{self.name}"
