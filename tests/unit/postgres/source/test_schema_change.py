"""A table that is altered under the stream: a stated outcome each, and no row misread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock.errors import PenstockError
from tests.support.cdc import Stream, source_table
from tests.unit.postgres.source.test_delivery import fill

Make = Callable[..., Stream]
Db = psycopg.Connection[Any]


def running(db: Db, stream: Stream) -> Stream:
    fill(db, 1, 2)
    stream.run()
    fill(db, 3, 3)
    stream.run()
    return stream


def refused(stream: Stream) -> str:
    with pytest.raises(PenstockError) as caught:
        stream.run()
    assert caught.value.code == "SCHEMA_CHANGED"
    stream.crash()
    return str(caught.value)


@pytest.mark.parametrize("policy", ["fail", "evolve"])
def test_an_added_column_ends_the_query_and_is_part_of_the_next_one(
    db: Db, make: Make, policy: str
) -> None:
    stream = running(db, make(onSchemaChange=policy))
    fill(db, 4, 4)
    db.execute("ALTER TABLE orders ADD COLUMN extra int DEFAULT 7")
    db.execute("INSERT INTO orders (id, extra) VALUES (5, 8)")
    assert 'ALTER TABLE "public"."orders" ADD COLUMN "extra" integer' in refused(stream)
    rows = stream.run()
    # What was written before the column was there has none.
    assert [(row["id"], row["extra"]) for row in rows] == [(4, None), (5, 8)]


def test_a_column_that_no_row_has_used_yet_changes_nothing(db: Db, stream: Stream) -> None:
    running(db, stream)
    fill(db, 4, 4)
    db.execute("ALTER TABLE orders ADD COLUMN extra int")
    assert [row["id"] for row in stream.run()] == [4]


def test_a_dropped_column_ends_the_query_unless_it_may_evolve(db: Db, make: Make) -> None:
    stream = running(db, make())
    stream.crash()
    fill(db, 4, 4)
    db.execute("ALTER TABLE orders DROP COLUMN name")
    db.execute("INSERT INTO orders VALUES (5, 1)")
    assert 'ALTER TABLE "public"."orders" DROP COLUMN "name"' in refused(stream)
    stream.raw["onSchemaChange"] = "evolve"
    assert [row["id"] for row in stream.run()] == [4, 5]


def test_a_column_dropped_under_a_running_query_is_null(db: Db, stream: Stream) -> None:
    running(db, stream)
    db.execute("ALTER TABLE orders DROP COLUMN note")
    fill_without_note(db, 4)
    assert [(row["id"], row["note"]) for row in stream.run()] == [(4, None)]


def fill_without_note(db: Db, number: int) -> None:
    db.execute("INSERT INTO orders (id, name) VALUES (%s, 'n')", [number])


@pytest.mark.parametrize("policy", ["fail", "evolve"])
def test_a_renamed_column_is_never_guessed(db: Db, make: Make, policy: str) -> None:
    stream = running(db, make(onSchemaChange=policy))
    stream.crash()
    fill(db, 4, 4)
    db.execute("ALTER TABLE orders RENAME COLUMN name TO title")
    assert 'ALTER TABLE "public"."orders" RENAME COLUMN "name" TO "title"' in refused(stream)


def test_a_column_renamed_under_a_running_query_is_never_guessed(db: Db, stream: Stream) -> None:
    running(db, stream)
    db.execute("ALTER TABLE orders RENAME COLUMN name TO title")
    db.execute("INSERT INTO orders (id, title) VALUES (4, 't')")
    assert 'ALTER TABLE "public"."orders" RENAME COLUMN "name" TO "title"' in refused(stream)


def test_a_column_renamed_while_nothing_is_pending_goes_on(db: Db, stream: Stream) -> None:
    running(db, stream)
    stream.crash()
    db.execute("ALTER TABLE orders RENAME COLUMN name TO title")
    db.execute("INSERT INTO orders (id, title) VALUES (4, 't')")
    # The slot still has the last batch, which Spark has committed: it is read over.
    assert [(row["id"], row["title"]) for row in stream.run()] == [(4, "t")]


def test_a_changed_type_ends_the_query(db: Db, stream: Stream) -> None:
    running(db, stream)
    db.execute("ALTER TABLE orders ALTER COLUMN amount TYPE text")
    db.execute("INSERT INTO orders (id, amount) VALUES (4, 'many')")
    text = refused(stream)
    assert "Column 'amount'" in text
    assert 'ALTER TABLE "public"."orders" ALTER COLUMN "amount" TYPE text' in text


def test_a_widened_type_evolves_at_the_restart(db: Db, make: Make) -> None:
    db.execute("CREATE TABLE counts (id int4 PRIMARY KEY, n int2)")
    stream = make("public.counts", onSchemaChange="evolve")
    stream.run()
    db.execute("INSERT INTO counts VALUES (1, 30000)")
    db.execute("ALTER TABLE counts ALTER COLUMN n TYPE int8, ALTER COLUMN id TYPE int8")
    db.execute("INSERT INTO counts VALUES (2, 5000000000)")
    refused(stream)
    assert [(row["id"], row["n"]) for row in stream.run()] == [(1, 30_000), (2, 5_000_000_000)]
    assert stream.table("id") == source_table(db, "counts", "id")


def test_a_table_altered_between_load_and_start_is_an_error(db: Db, stream: Stream) -> None:
    stream.start()
    db.execute("ALTER TABLE orders ADD COLUMN extra int")
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert caught.value.code == "SCHEMA_FIXED"
