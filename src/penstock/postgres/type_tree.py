"""The types of columns, read from pg_type as trees; runs on the driver.

A domain's base, an array's elements, a composite's attributes and a range's bounds are asked for
level by level, each level in one statement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.postgres.model import Kind, PgType

if TYPE_CHECKING:
    import psycopg

# An array is what its element type calls its array: int2vector has elements too, but is none.
_TYPES = """
SELECT t.oid::int8, t.typname, t.typtype::text, t.typdelim::text,
       CASE WHEN e.typarray = t.oid THEN e.oid::int8 END,
       CASE WHEN t.typtype = 'd' THEN t.typbasetype::int8 END, t.typtypmod,
       coalesce(r.rngsubtype, m.rngsubtype)::int8,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT array_agg(a.atttypid::int8 ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT array_agg(a.atttypmod ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
  FROM pg_type t
  LEFT JOIN pg_type e ON e.oid = t.typelem
  LEFT JOIN pg_range r ON t.typtype = 'r' AND r.rngtypid = t.oid
  LEFT JOIN pg_range m ON t.typtype = 'm' AND m.rngmultitypid = t.oid
 WHERE t.oid = ANY(%s::oid[])
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    oid: int
    name: str
    typtype: str
    delimiter: str
    element: int | None
    base: int | None
    base_typmod: int
    bounds: int | None
    field_names: list[str] | None
    field_types: list[int] | None
    field_typmods: list[int] | None

    def fields(self) -> list[tuple[str, int, int]]:
        """Give name, type and typmod of a composite's attributes."""
        if self.typtype != "c":
            return []
        lists = (self.field_names or [], self.field_types or [], self.field_typmods or [])
        return list(zip(*lists, strict=True))

    def needs(self) -> set[int]:
        """Give the types that it is made of."""
        inner = {self.element, self.base, self.bounds} - {None}
        return {oid for oid in inner if oid} | {oid for _, oid, _ in self.fields()}


class TypeTrees:
    """Types of one database, kept so that each is asked for once."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def load(self, connection: psycopg.Connection[Any], oids: Iterable[int]) -> None:
        """Ask for these types and all that they are made of."""
        wanted = set(oids) - self._entries.keys()
        while wanted:
            rows = connection.execute(_TYPES, [list(wanted)]).fetchall()
            entries = [_Entry(*row) for row in rows]
            self._entries.update((entry.oid, entry) for entry in entries)
            needed = {oid for entry in entries for oid in entry.needs()}
            wanted = needed - self._entries.keys()

    def tree(self, oid: int, typmod: int = -1) -> PgType:
        """Give a type that was asked for."""
        entry = self._entries[oid]
        if entry.element is not None:
            # The typmod of an array is that of its elements.
            inner = self.tree(entry.element, typmod)
            return PgType(oid, entry.name, Kind.ARRAY, typmod, inner, delimiter=entry.delimiter)
        if entry.base is not None:
            inner = self.tree(entry.base, entry.base_typmod)
            return PgType(oid, entry.name, Kind.DOMAIN, entry.base_typmod, inner)
        if entry.bounds is not None:
            kind = Kind(entry.typtype)
            return PgType(oid, entry.name, kind, typmod, self.tree(entry.bounds))
        if entry.typtype == "c":
            fields = tuple((name, self.tree(of, mod)) for name, of, mod in entry.fields())
            return PgType(oid, entry.name, Kind.COMPOSITE, typmod, fields=fields)
        kind = Kind.ENUM if entry.typtype == "e" else Kind.BASE
        return PgType(oid, entry.name, kind, typmod)
