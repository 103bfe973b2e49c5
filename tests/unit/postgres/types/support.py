"""A table in a real PostgreSQL, read as the stream and as the snapshot would read it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa

from penstock.postgres.model import Kind, PgType
from penstock.postgres.types import ColumnType, TypePolicy, column_type, session_sql
from penstock.testing.postgres import PostgresServer
from tests.unit.postgres.types.cases import SETUP, Case

SLOT = "types"


@dataclass(frozen=True)
class Sample:
    """A column's type and all its values, as stream and snapshot carry them."""

    type: PgType
    texts: pa.Array
    copied: pa.Array
    # With TypePolicy(nested="string").
    copied_flat: pa.Array

    @property
    def column(self) -> ColumnType:
        return column_type(self.type, TypePolicy())


class Lab:
    """One database with a slot and a publication of all tables."""

    def __init__(self, server: PostgresServer) -> None:
        database = server.create_database()
        self.version = server.version
        self._samples: dict[Case, Sample] = {}
        self.sql = psycopg.connect(server.url(database), autocommit=True)
        self.sql.execute(session_sql())
        self.sql.execute(SETUP)
        self.sql.execute("CREATE PUBLICATION types FOR ALL TABLES")
        self.sql.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        self.copy = adbc.connect(server.url(database), autocommit=True)
        with self.copy.cursor() as cursor:
            cursor.execute(session_sql())
            cursor.fetchall()

    def close(self) -> None:
        self.copy.close()
        self.sql.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
        self.sql.close()

    def sample(self, case: Case) -> Sample:
        """Store and read the values of a case; once for all tests."""
        if case not in self._samples:
            self.fill(case.sql, case.inputs)
            type_, texts = self.type_of(), self.streamed_text()
            copied = [
                self.snapshot(column_type(type_, policy))
                for policy in (TypePolicy(), TypePolicy(nested="string"))
            ]
            self._samples[case] = Sample(type_, texts, *copied)
        return self._samples[case]

    def fill(self, sql_type: str, values: Sequence[str | None]) -> None:
        """Make a table anew with one column and these values, in order."""
        # What a failed test has left in the slot is not this test's.
        self.streamed_text()
        self.sql.execute("DROP TABLE IF EXISTS public.sample")
        self.sql.execute(f"CREATE TABLE public.sample (n int, v {sql_type})")
        with self.sql.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO public.sample VALUES (%s, CAST(%s AS {sql_type}))",  # noqa: S608 - a test's
                list(enumerate(values)),
            )

    def streamed_text(self) -> pa.Array:
        """What pgoutput sends for the rows that were inserted since the last call."""
        changes = self.sql.execute(
            f"SELECT data FROM pg_logical_slot_get_binary_changes('{SLOT}', NULL, NULL,"  # noqa: S608
            " 'proto_version', '1', 'publication_names', 'types')"
        ).fetchall()
        messages = [bytes(data) for (data,) in changes]
        return pa.array([_second_value(m) for m in messages if m[:1] == b"I"], pa.string())

    def snapshot(self, column: ColumnType) -> pa.Array:
        """What ADBC gives for the column's snapshot expression."""
        with self.copy.cursor() as cursor:
            expression = column.snapshot_sql("v")
            cursor.execute(f"SELECT {expression} AS v FROM public.sample ORDER BY n")  # noqa: S608
            return cursor.fetch_record_batch().read_all().column("v").combine_chunks()

    def type_of(self, relation: str = "public.sample", name: str = "v") -> PgType:
        """The column's type, from the catalog."""
        (oid, modifier), *_ = self.sql.execute(
            "SELECT atttypid, atttypmod FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attname = %s",
            [relation, name],
        ).fetchall()
        return self.pg_type(oid, modifier)

    def pg_type(self, oid: int, typmod: int = -1) -> PgType:
        """A type with all that is inside it."""
        row = self.sql.execute(
            "SELECT t.typname, t.typtype::text, t.typbasetype, t.typtypmod, t.typrelid,"
            " CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem"
            " ELSE 0 END, e.typdelim::text"
            " FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = %s",
            [oid],
        ).fetchone()
        assert row is not None
        name, letter, base, base_modifier, relation, element, delimiter = row
        if element:
            inner = self.pg_type(element)
            return PgType(oid, name, Kind.ARRAY, typmod, inner, delimiter=delimiter)
        if letter == "d":
            return PgType(oid, name, Kind.DOMAIN, base_modifier, self.pg_type(base))
        if letter == "c":
            attributes = self.sql.execute(
                "SELECT attname, atttypid, atttypmod FROM pg_attribute"
                " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [relation],
            ).fetchall()
            fields = tuple((n, self.pg_type(o, m)) for n, o, m in attributes)
            return PgType(oid, name, Kind.COMPOSITE, fields=fields)
        # cstring, of which there is an array type, is no type of columns.
        return PgType(oid, name, Kind.BASE if letter == "p" else Kind(letter), typmod)


def _second_value(message: bytes) -> str | None:
    # Insert: relation, 'N', two columns; each is a letter and, unless null, a length and text.
    (first_length,) = struct.unpack_from(">i", message, 9)
    at = 13 + first_length
    if message[at : at + 1] == b"n":
        return None
    (length,) = struct.unpack_from(">i", message, at + 1)
    return message[at + 5 : at + 5 + length].decode()


def shown(values: pa.Array) -> list[Any]:
    """The values so that NaN equals NaN and -0 does not equal 0."""
    return [repr(value) for value in values.to_pylist()]
