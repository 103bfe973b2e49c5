"""Many tables in one stream and one slot: the generic form, and each table's own back from it."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.errors import PenstockError
from penstock.postgres.source.columns import plan_table
from penstock.postgres.source.plans import OneTable
from penstock.postgres.source.server import load_plan
from penstock.postgres.tables import _Typed
from tests.support.cdc import Row, Stream, rebuild, source_table

Db = psycopg.Connection[Any]


@pytest.fixture
def many(url: str, db: Db) -> Stream:
    db.execute("CREATE SCHEMA shop")
    db.execute("CREATE TABLE shop.items (id int4 PRIMARY KEY, price numeric(8,2), tags text[])")
    db.execute("CREATE TABLE shop.log (at timestamptz, line text)")
    db.execute("CREATE TABLE shop.unrelated_view_base (x int)")
    stream = Stream(url, tables="public.orders, shop.items, shop.lo?")
    del stream.raw["table"]
    return stream


def typed(db: Db, stream: Stream, table: str) -> list[Row]:
    """Do what `typed_table` does in the workers."""
    options = type(stream.options).parse({"url": stream.raw["url"], "table": table})
    plan, _ = load_plan(db, options)
    assert isinstance(plan, OneTable)
    rows = [row for row in stream.rows if row["_table"] == table]
    schema = pa.schema(
        [("values", pa.map_(pa.string(), pa.string())), *list(plan.plan.arrow_schema)[-6:]]
    )
    picked = [{name: row[name] for name in schema.names} for row in rows]
    batch = pa.RecordBatch.from_pylist(picked, schema=schema)
    [converted] = _Typed(plan.plan)([batch])
    found: list[Row] = converted.to_pylist()
    return found


def test_all_tables_come_through_one_slot(db: Db, many: Stream) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'a', 1.5, NULL)")
    db.execute("INSERT INTO shop.items VALUES (7, 3.25, '{a,b}')")
    db.execute("INSERT INTO shop.log VALUES ('2026-01-02 03:04:05+00', '')")
    many.run()
    assert sorted(row["_table"] for row in many.rows) == ["public.orders", "shop.items", "shop.log"]
    with db.transaction():
        db.execute("UPDATE shop.items SET price = 4 WHERE id = 7")
        db.execute("INSERT INTO orders VALUES (2, '', NULL, 'x')")
        db.execute("DELETE FROM shop.items")
        db.execute("INSERT INTO shop.unrelated_view_base VALUES (1)")
    rows = many.run()
    assert {(row["_table"], row["_op"]) for row in rows} == {
        ("shop.items", "update"),
        ("shop.items", "delete"),
        ("public.orders", "insert"),
    }
    assert [dict(row["values"]) for row in rows if row["_op"] == "delete"] == [{"id": "7"}]
    assert db.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (1,)
    many.crash()


def test_each_table_has_its_types_back(db: Db, many: Stream) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'a', 1.5, NULL), (2, '', -2, 'n')")
    db.execute("INSERT INTO shop.items VALUES (7, 3.25, '{a,NULL}')")
    many.run()
    db.execute("INSERT INTO orders VALUES (3, NULL, 7.25, 'x')")
    db.execute("UPDATE orders SET id = 4 WHERE id = 1")
    db.execute("UPDATE shop.items SET tags = '{}'")
    many.run()
    for table, name in (("public.orders", "orders"), ("shop.items", "shop.items")):
        assert rebuild(typed(db, many, table), "id") == source_table(db, name, "id")
    many.crash()


def test_altered_tables_go_on(db: Db, many: Stream) -> None:
    """A row names its own columns, so none can be misread."""
    many.run()
    db.execute("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    db.execute("ALTER TABLE orders RENAME COLUMN name TO title")
    db.execute("ALTER TABLE orders ADD COLUMN extra int")
    db.execute("INSERT INTO orders VALUES (2, 'b', 1, NULL, 5)")
    rows = many.run()
    assert [sorted(dict(row["values"])) for row in rows] == [
        ["amount", "id", "name", "note"],
        ["amount", "extra", "id", "note", "title"],
    ]
    many.crash()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"table": "public.orders", "tables": "public.*"}, "both"),
        ({}, "table"),
        ({"tables": "shop.none*"}, "none"),
    ],
)
def test_what_to_read_has_to_be_said_once(
    url: str, db: Db, options: dict[str, str], word: str
) -> None:
    stream = Stream(url)
    del stream.raw["table"]
    stream.raw |= options
    with pytest.raises(PenstockError) as caught:
        stream.start()
    assert word in str(caught.value)


def test_plans_of_one_table_are_the_same_with_and_without_a_publication(db: Db, url: str) -> None:
    options = Stream(url).options
    plan, publication = load_plan(db, options)
    assert publication is None
    again = plan_table(plan.tables[0], None, 180_000, options)
    assert plan.spark_schema == again.spark_schema
