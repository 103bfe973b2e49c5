"""Tables are created and widened as the options allow, and what does not fit is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import types as spark

from penstock.errors import SchemaError
from penstock.snowflake.connection import connected
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.tables import Needed, Rights, describe, ensure_table, new_name
from penstock.snowflake.types import SnowType, snow_type
from tests.unit.snowflake.sink.conftest import Sink

NO_RIGHTS = Rights(may_create=False, may_evolve=False)
CREATE = Rights(may_create=True, may_evolve=False)
EVOLVE = Rights(may_create=False, may_evolve=True)
LONG, INT, TEXT = spark.LongType(), spark.IntegerType(), spark.StringType()


def needed(**columns: spark.DataType) -> list[Needed]:
    return [
        Needed(name, snow_type(name, kind), kind.simpleString()) for name, kind in columns.items()
    ]


@pytest.fixture
def connection(sink: Sink) -> Iterator[Any]:
    with connected(sink.options()) as opened:
        yield opened


@pytest.fixture
def table(sink: Sink) -> TableName:
    return sink.options().target


def types_of(connection: Any, table: TableName) -> dict[str, str]:
    return {column.name: str(column.type) for column in describe(connection, table) or []}


def test_a_table_is_created_with_the_names_that_sql_finds(
    connection: Any, table: TableName
) -> None:
    ensure_table(connection, table, needed(id=LONG, **{"My col": TEXT, "ü.x": INT}), CREATE)
    assert types_of(connection, table) == {
        "ID": "NUMBER(19,0)",
        "My col": "VARCHAR",
        "ü.x": "NUMBER(10,0)",
    }
    # Again: nothing to do.
    found = ensure_table(connection, table, needed(Id=LONG), NO_RIGHTS)
    assert [column.name for column in found] == ["ID"]


def test_columns_are_added_and_widened_with_the_right_to(sink: Sink, table: TableName) -> None:
    sink.query(f"CREATE TABLE {sink.table} (id NUMBER(10,0), s VARCHAR(5), k NUMBER NOT NULL)")
    with connected(sink.options()) as connection:
        wanted = needed(id=LONG, s=TEXT, extra=spark.DateType())
        ensure_table(connection, table, wanted, EVOLVE)
        assert types_of(connection, table) == {
            "ID": "NUMBER(19,0)",
            "S": "VARCHAR",
            "K": "NUMBER(38,0)",
            "EXTRA": "DATE",
        }
        columns = describe(connection, table) or []
        assert all(column.is_nullable for column in columns)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": LONG}, r"'id'.*bigint.*NUMBER\(19,0\).*ID.*is NUMBER\(10,0\).*SET DATA TYPE"),
        ({"id": TEXT}, r"'id'.*string.*VARCHAR.*is NUMBER\(10,0\).*Cast"),
        ({"id": INT, "more": TEXT}, r"'more'.*no such column.*ADD COLUMN \"MORE\" VARCHAR"),
        ({"s": TEXT}, r"K of table.*NOT NULL"),
    ],
)
def test_what_does_not_fit_is_named_with_its_remedy(
    sink: Sink, table: TableName, columns: dict[str, spark.DataType], words: str
) -> None:
    extra = {} if words.startswith("K") else {"k": INT}
    sink.query(f"CREATE TABLE {sink.table} (id NUMBER(10,0), s VARCHAR, k NUMBER NOT NULL)")
    before = None
    with connected(sink.options()) as connection:
        before = types_of(connection, table)
        with pytest.raises(SchemaError, match=words):
            ensure_table(connection, table, needed(**columns, **extra), NO_RIGHTS)
        assert types_of(connection, table) == before


def test_types_that_no_alter_changes_are_an_error_also_with_the_right_to(
    sink: Sink, table: TableName
) -> None:
    sink.query(f"CREATE TABLE {sink.table} (d DATE)")
    with (
        connected(sink.options()) as connection,
        pytest.raises(SchemaError, match=r"'d'.*timestamp.*is DATE.*Cast"),
    ):
        ensure_table(connection, table, needed(d=spark.TimestampType()), EVOLVE)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("id", "ID"), ("OrderId", "ORDERID"), ("a b", "a b"), ("ü", "ü"), ("a.b", "a.b"),
     ('q"q', 'q"q'), ("1a", "1a")],
)  # fmt: skip
def test_new_columns_are_named_as_sql_reads_bare_names(name: str, wanted: str) -> None:
    assert new_name(name) == wanted


def test_a_bounded_text_is_not_lengthened_for_a_bounded_one(
    connection: Any, sink: Sink, table: TableName
) -> None:
    sink.query(f"CREATE TABLE {sink.table} (s VARCHAR(5))")
    ensure_table(connection, table, [Needed("s", SnowType("VARCHAR", 3), "varchar(3)")], EVOLVE)
    assert types_of(connection, table) == {"S": "VARCHAR(5)"}
