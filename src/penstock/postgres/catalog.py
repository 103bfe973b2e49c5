"""Tables as the catalog has them: found by name or pattern, with columns, types and keys.

Runs on the driver. What cannot be read as changes is an error that says why, never left out of
what a user has named.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ResourceError
from penstock.postgres.errors import translated
from penstock.postgres.identifiers import TablePattern, parse_table_patterns
from penstock.postgres.model import Column, Table
from penstock.postgres.type_tree import TypeTrees

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger(__name__)

_RELATIONS = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       c.relreplident::text,
       CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid::int8 END
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
 ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""
# Temporary tables of this session are in pg_temp_N, which nobody names.
_TEMPORARY = "SELECT relname FROM pg_class WHERE relpersistence = 't' AND relkind IN ('r', 'p')"
_COLUMNS = """
SELECT a.attrelid::int8, a.attname, a.attnum::int4, a.atttypid::int8, a.atttypmod, a.attnotnull,
       a.attgenerated::text,
       coalesce(a.attnum = ANY(p.indkey), false), coalesce(a.attnum = ANY(i.indkey), false),
       array_position(p.indkey::int2[], a.attnum)
  FROM pg_attribute a
  LEFT JOIN pg_index p ON p.indrelid = a.attrelid AND p.indisprimary
  LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisreplident
 WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""
_UNFIT_KINDS = {
    "v": ("a view", "Read the tables behind it"),
    "m": ("a materialized view", "Read the tables behind it"),
    "f": ("a foreign table: its changes are not in this server's WAL", "Read it at its own server"),
    "S": ("a sequence", "Name a table"),
}
_UNFIT_PERSISTENCE = {
    "t": ("a temporary table: it is not in the WAL", "Use a permanent table"),
    "u": ("an unlogged table: it is not in the WAL", "ALTER TABLE ... SET LOGGED"),
}


@dataclass(frozen=True, slots=True)
class _Relation:
    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    replica_identity: str
    # Of a partition, the table at the top of its tree.
    root: int | None

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def unfit(self) -> tuple[str, str] | None:
        """Say what stands against reading its changes, and what to do; None where nothing does."""
        return _UNFIT_KINDS.get(self.kind) or _UNFIT_PERSISTENCE.get(self.persistence)


def read_table(connection: psycopg.Connection[Any], name: str) -> Table:
    """Find one table by its name: `public.orders`, `"We ird"."na.me"`.

    Raises:
        ResourceError: there is none, or its changes cannot be read.
        OptionError: it is not one name.
    """
    tables = read_tables(connection, name)
    if len(tables) != 1:
        raise ResourceError(
            "TABLE_NAME",
            f"Table '{name}'",
            f"means {len(tables)} tables",
            "Name one table, or use option 'tables'",
        )
    return tables[0]


def read_tables(
    connection: psycopg.Connection[Any], patterns: str | Iterable[str]
) -> tuple[Table, ...]:
    """Find tables by names and patterns: `public.*`, `sales.order_?`; in the order of names.

    A partition is left out where the table it belongs to is read too: its rows come as those of
    that table.

    Raises:
        ResourceError: one of them means no table, or names one whose changes cannot be read.
        OptionError: one of them cannot be read.
    """
    text = patterns if isinstance(patterns, str) else ",".join(patterns)
    wanted = parse_table_patterns(text)
    with translated(f"Tables '{text}'"):
        relations = [_Relation(*row) for row in connection.execute(_RELATIONS).fetchall()]
        found: dict[int, _Relation] = {}
        for pattern in wanted:
            found.update((each.oid, each) for each in _select(connection, relations, pattern))
        kept = [each for each in found.values() if each.root not in found]
        kept.sort(key=lambda each: (each.schema, each.name))
        return _load(connection, kept)


def missing_relations(connection: psycopg.Connection[Any], oids: Sequence[int]) -> set[int]:
    """Give those of some tables that are not there any more, by the oid that no other ever has."""
    with translated("The catalog"):
        found = connection.execute(
            "SELECT oid::int8 FROM pg_class WHERE oid = ANY(%s::oid[])", [list(oids)]
        ).fetchall()
    return set(oids) - {row[0] for row in found}


def read_definitions(
    connection: psycopg.Connection[Any], oid: int
) -> tuple[tuple[str, str, int], ...]:
    """Give name, type as DDL has it, and number of each column that a table has now."""
    with translated("The catalog"):
        return tuple(
            connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod), attnum::int4 FROM pg_attribute"
                " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [oid],
            ).fetchall()
        )


def type_texts(
    connection: psycopg.Connection[Any], types: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """Write types, given by oid and modifier, as DDL has them."""
    with translated("The catalog"):
        rows = connection.execute(
            "SELECT format_type(t.oid, t.typmod)"
            " FROM unnest(%s::oid[], %s::int4[]) WITH ORDINALITY AS t (oid, typmod, place)"
            " ORDER BY t.place",
            [[oid for oid, _ in types], [typmod for _, typmod in types]],
        ).fetchall()
    return tuple(row[0] for row in rows)


def has_columns(connection: psycopg.Connection[Any], oid: int, names: Sequence[str]) -> bool:
    """Tell whether a table has any of these columns."""
    with translated("The catalog"):
        row = connection.execute(
            "SELECT FROM pg_attribute WHERE attrelid = %s AND attname = ANY(%s)"
            " AND attnum > 0 AND NOT attisdropped LIMIT 1",
            [oid, list(names)],
        ).fetchone()
    return row is not None


def _select(
    connection: psycopg.Connection[Any], relations: list[_Relation], pattern: TablePattern
) -> list[_Relation]:
    meant = [each for each in relations if pattern.matches(each.schema, each.name)]
    if not pattern.is_exact:
        fit = [each for each in meant if each.unfit() is None]
        for each in meant:
            if each.unfit() is not None and each.kind in "rp":
                _log.warning("%s is not read: it is not in the WAL", each.full_name)
        meant = fit
    if not meant:
        raise _missing(connection, relations, pattern)
    reason = meant[0].unfit()
    if reason is not None:
        fact, remedy = reason
        raise ResourceError("TABLE_UNFIT", f"Table '{meant[0].full_name}'", f"is {fact}", remedy)
    return meant


def _missing(
    connection: psycopg.Connection[Any], relations: list[_Relation], pattern: TablePattern
) -> ResourceError:
    if not pattern.is_exact:
        return ResourceError(
            "TABLE_MISSING",
            f"Tables '{pattern}'",
            "no table has such a name",
            "Correct the pattern: * stands for any letters, ? for one; the user needs no "
            "permission to see names",
        )
    temporary = {row[0] for row in connection.execute(_TEMPORARY).fetchall()}
    if pattern.name.text in temporary:
        fact, remedy = _UNFIT_PERSISTENCE["t"]
        return ResourceError("TABLE_UNFIT", f"Table '{pattern}'", f"is {fact}", remedy)
    tables = {each.full_name.lower(): each for each in relations if each.unfit() is None}
    near = difflib.get_close_matches(str(pattern).lower(), tables, n=3, cutoff=0.7)
    written = " or ".join(f'"{tables[key].schema}"."{tables[key].name}"' for key in near)
    remedy = f"Did you mean {written}?" if near else "Correct the name, or create the table"
    return ResourceError("TABLE_MISSING", f"Table '{pattern}'", "does not exist", remedy)


def _load(connection: psycopg.Connection[Any], relations: list[_Relation]) -> tuple[Table, ...]:
    rows = connection.execute(_COLUMNS, [[each.oid for each in relations]]).fetchall()
    trees = TypeTrees()
    trees.load(connection, {row[3] for row in rows})
    by_relation: dict[int, list[tuple[Any, ...]]] = {each.oid: [] for each in relations}
    for row in rows:
        by_relation[row[0]].append(row)
    return tuple(_table(each, by_relation[each.oid], trees) for each in relations)


def _table(relation: _Relation, rows: list[tuple[Any, ...]], trees: TypeTrees) -> Table:
    columns, key = [], []
    for _, name, number, type_oid, typmod, not_null, generated, primary, by_index, place in rows:
        identity = {"d": primary, "i": by_index, "f": True}.get(relation.replica_identity, False)
        columns.append(
            Column(name, number, trees.tree(type_oid, typmod), not_null, identity, generated)
        )
        if primary:
            key.append((place, name))
    return Table(
        oid=relation.oid,
        schema=relation.schema,
        name=relation.name,
        columns=tuple(columns),
        replica_identity=relation.replica_identity,
        kind=relation.kind,
        primary_key=tuple(name for _, name in sorted(key)),
    )
