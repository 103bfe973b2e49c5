"""The publication of a stream: made when missing, checked when it is there; runs on the driver.

Says also which rows and columns of a table it lets through, so that the snapshot takes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ResourceError
from penstock.postgres.errors import translated
from penstock.postgres.identifiers import quote_identifier, quote_qualified

if TYPE_CHECKING:
    import psycopg

    from penstock.postgres.model import Table

# Publishing takes a short lock on each table, behind whoever changes its definition.
_LOCK_TIMEOUT = "SET lock_timeout = '30s'"


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What a publication lets through of one table."""

    oid: int
    # The names of the columns it sends, in the order of the table.
    columns: tuple[str, ...]
    # An SQL expression over the table's columns; None lets all rows through.
    row_filter: str | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication as the server has it."""

    name: str
    is_for_all_tables: bool
    publishes: frozenset[str]
    via_root: bool
    tables: tuple[PublishedTable, ...]

    def table(self, oid: int) -> PublishedTable | None:
        """Give what is published of a table; None where nothing is."""
        return next((each for each in self.tables if each.oid == oid), None)


_PUBLICATION = """
SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot
  FROM pg_publication WHERE pubname = %s
"""
OPERATIONS = ("insert", "update", "delete", "truncate")


def published_tables_query(version: int) -> str:
    """Write the SQL for what a publication lets through of its tables.

    pg_get_publication_tables tells it as the WAL sender sees it: schemas and partitions resolved,
    columns always listed, generated ones only where they are sent. Before 15 a publication had
    neither column lists nor filters, and generated columns were never sent.
    """
    source = "pg_get_publication_tables(%(name)s) g"
    generated = ""
    if version < 150_000:
        source = (
            "(SELECT relid, NULL::int2vector AS attrs, NULL::pg_node_tree AS qual"
            " FROM pg_get_publication_tables(%(name)s)) g"
        )
        generated = " AND a.attgenerated = ''"
    return (
        "SELECT g.relid::int8,"  # noqa: S608 - the parts are fixed
        " (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a"
        "   WHERE a.attrelid = g.relid AND a.attnum > 0 AND NOT a.attisdropped"
        f"    AND (g.attrs IS NULL OR a.attnum = ANY(g.attrs)){generated}),"
        f" pg_get_expr(g.qual, g.relid) FROM {source}"
    )


def create_statement(name: str, tables: Sequence[Table], *, generated_columns: bool) -> str:
    """Write the SQL that publishes exactly these tables.

    Args:
        name: of the publication.
        tables: what it publishes.
        generated_columns: whether stored generated columns are sent too; 18 and later.
    """
    # ONLY keeps tables that inherit from it out; of a partitioned table all is meant anyway.
    targets = ", ".join(
        ("" if table.kind == "p" else "ONLY ") + quote_qualified(table.schema, table.name)
        for table in tables
    )
    options = ["publish = 'insert, update, delete, truncate'", "publish_via_partition_root = true"]
    if generated_columns:
        options.append("publish_generated_columns = stored")
    return (
        f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE {targets}"
        f" WITH ({', '.join(options)})"
    )


def read_publication(
    connection: psycopg.Connection[Any], name: str, version: int
) -> Publication | None:
    """Look a publication up; None where there is none."""
    with translated(f"Publication '{name}'"):
        row = connection.execute(_PUBLICATION, [name]).fetchone()
        if row is None:
            return None
        query = published_tables_query(version).encode()
        published = connection.execute(query, {"name": name}).fetchall()
    for_all, *flags, via_root = row
    return Publication(
        name=name,
        is_for_all_tables=for_all,
        publishes=frozenset(word for word, is_on in zip(OPERATIONS, flags, strict=True) if is_on),
        via_root=via_root,
        tables=tuple(
            PublishedTable(oid, tuple(columns or ()), row_filter)
            for oid, columns, row_filter in published
        ),
    )


def ensure_publication(
    connection: psycopg.Connection[Any], name: str, tables: Sequence[Table], version: int
) -> Publication:
    """Make the publication, or check that the one of this name serves the stream.

    One that is there may publish more tables, some of the rows and some of the columns: that is
    its owner's wish. It has to publish each table, as itself, with all operations.

    Raises:
        ResourceError: the one that is there does not serve.
        AccessError: this user may not make one.
    """
    found = read_publication(connection, name, version)
    if found is None:
        has_stored = any(column.generated == "s" for table in tables for column in table.columns)
        statement = create_statement(
            name, tables, generated_columns=has_stored and version >= 180_000
        )
        with translated(f"Publication '{name}'"):
            connection.execute(_LOCK_TIMEOUT)
            try:
                connection.execute(statement.encode())
            finally:
                if not connection.broken:
                    connection.execute("RESET lock_timeout")
        found = read_publication(connection, name, version)
        assert found is not None  # noqa: S101 - it was just made
    check_publication(found, tables)
    return found


def check_publication(publication: Publication, tables: Sequence[Table]) -> None:
    """Check that a publication sends all that the stream is about.

    Raises:
        ResourceError: a table, an operation or partitioned tables' own name is missing.
    """
    name, quoted = publication.name, quote_identifier(publication.name)
    subject = f"Publication '{name}'"
    missing = [word for word in OPERATIONS if word not in publication.publishes]
    if missing:
        raise ResourceError(
            "PUBLICATION_UNFIT",
            subject,
            f"does not publish {', '.join(missing)}",
            f"ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate'), or "
            "set option 'publication' to another name",
        )
    if not publication.via_root and any(table.kind == "p" for table in tables):
        raise ResourceError(
            "PUBLICATION_UNFIT",
            subject,
            "publishes changes of partitioned tables under the names of their partitions",
            f"ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true)",
        )
    for table in tables:
        if publication.table(table.oid) is None:
            target = quote_qualified(table.schema, table.name)
            raise ResourceError(
                "PUBLICATION_UNFIT",
                subject,
                f"does not publish table '{table.full_name}'",
                f"ALTER PUBLICATION {quoted} ADD TABLE ONLY {target}, or set option "
                "'publication' to another name",
            )


def drop_publication(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a publication, if it is there."""
    with translated(f"Publication '{name}'"):
        connection.execute(f"DROP PUBLICATION IF EXISTS {quote_identifier(name)}".encode())
