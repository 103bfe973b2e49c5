"""What change streams get wrong elsewhere: each trap, from the table to the rows and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock.errors import PenstockError
from tests.support.cdc import Stream, source_table

Make = Callable[..., Stream]
Db = psycopg.Connection[Any]
# More than fits a page, and not to be compressed.
LARGE = (
    "INSERT INTO orders VALUES"
    " (1, 'a', 1, (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 2000) g))"
)


def begun(stream: Stream) -> Stream:
    stream.run()
    return stream


def test_an_unchanged_large_value_is_named_and_keeps_its_value(db: Db, stream: Stream) -> None:
    db.execute(LARGE)
    begun(stream)
    db.execute("UPDATE orders SET name = 'b'")
    [row] = stream.run()
    assert (row["_op"], row["note"], row["_unchanged"]) == ("update", None, ["note"])
    assert stream.table("id") == source_table(db, "orders", "id")


def test_with_replica_identity_full_every_value_is_there(db: Db, stream: Stream) -> None:
    db.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    db.execute(LARGE)
    begun(stream)
    db.execute("UPDATE orders SET name = 'b'")
    db.execute("UPDATE orders SET id = 2")
    db.execute("DELETE FROM orders")
    rows = stream.run()
    assert [row["_op"] for row in rows] == ["update", "delete", "insert", "delete"]
    assert [row["_unchanged"] for row in rows] == [[]] * 4
    assert {len(row["note"]) for row in rows} == {64_000}


def test_a_changed_key_leaves_no_old_row(db: Db, stream: Stream) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    begun(stream)
    db.execute("UPDATE orders SET id = id + 10")
    assert [(row["_op"], row["id"]) for row in stream.run()] == [
        ("delete", 1),
        ("insert", 11),
        ("delete", 2),
        ("insert", 12),
    ]
    assert stream.table("id") == source_table(db, "orders", "id")


def test_several_changes_of_a_key_in_one_transaction_keep_their_order(
    db: Db, stream: Stream
) -> None:
    begun(stream)
    with db.transaction():
        db.execute("INSERT INTO orders VALUES (1, 'a')")
        db.execute("UPDATE orders SET name = 'b'")
        db.execute("DELETE FROM orders")
        db.execute("INSERT INTO orders VALUES (1, 'c')")
        db.execute("UPDATE orders SET name = 'd'")
    rows = stream.run()
    assert [row["_op"] for row in rows] == ["insert", "update", "delete", "insert", "update"]
    assert len({(row["_lsn"], row["_xid"], row["_commit_time"]) for row in rows}) == 1
    assert stream.table("id") == source_table(db, "orders", "id")


def test_what_was_rolled_back_never_comes(db: Db, stream: Stream) -> None:
    begun(stream)
    with db.transaction():
        db.execute("INSERT INTO orders VALUES (1, 'kept')")
        with db.transaction(force_rollback=True):
            db.execute("INSERT INTO orders VALUES (2, 'gone')")
    with db.transaction(force_rollback=True):
        db.execute("INSERT INTO orders VALUES (3, 'gone')")
    assert [row["id"] for row in stream.run()] == [1]


def test_a_prepared_transaction_comes_when_it_is_committed(db: Db, stream: Stream) -> None:
    begun(stream)
    db.execute("BEGIN")
    db.execute("INSERT INTO orders VALUES (1, 'a')")
    db.execute("PREPARE TRANSACTION 'one'")
    assert stream.run() == []
    db.execute("COMMIT PREPARED 'one'")
    assert [row["id"] for row in stream.run()] == [1]


def test_truncate_empties_the_table(db: Db, stream: Stream) -> None:
    db.execute("INSERT INTO orders VALUES (1), (2)")
    begun(stream)
    db.execute("TRUNCATE orders")
    db.execute("INSERT INTO orders VALUES (3)")
    assert [row["_op"] for row in stream.run()] == ["truncate", "insert"]
    assert stream.table("id") == source_table(db, "orders", "id")


def test_an_empty_text_is_not_a_null(db: Db, stream: Stream) -> None:
    db.execute("INSERT INTO orders (id, name, note) VALUES (1, '', NULL)")
    begun(stream)
    db.execute("INSERT INTO orders (id, name, note) VALUES (2, '', NULL)")
    stream.run()
    assert [(row["name"], row["note"]) for row in stream.rows] == [("", None)] * 2


def test_a_table_without_a_key_can_be_added_to(db: Db, make: Make) -> None:
    """PostgreSQL itself refuses updates and deletes of a published table without an identity."""
    db.execute("CREATE TABLE log (x int)")
    db.execute("INSERT INTO log VALUES (1), (1)")
    stream = begun(make("public.log"))
    db.execute("INSERT INTO log VALUES (2), (2)")
    stream.run()
    assert sorted(row["x"] for row in stream.rows) == [1, 1, 2, 2]


def test_an_index_may_be_the_identity(db: Db, make: Make) -> None:
    db.execute("CREATE TABLE t (a int, b int NOT NULL UNIQUE, c text)")
    db.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_b_key")
    db.execute("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')")
    stream = begun(make("public.t"))
    db.execute("UPDATE t SET b = 3 WHERE a = 1")
    db.execute("DELETE FROM t WHERE b = 2")
    rows = stream.run()
    assert [(row["_op"], row["b"]) for row in rows] == [("delete", 1), ("insert", 3), ("delete", 2)]
    assert stream.table("b") == source_table(db, "t", "b")


def test_a_partitioned_table_is_one_table(db: Db, make: Make) -> None:
    db.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for low in (0, 100):
        db.execute(f"CREATE TABLE p{low} PARTITION OF p FOR VALUES FROM ({low}) TO ({low + 100})")
    db.execute("INSERT INTO p SELECT g, 'n' FROM generate_series(0, 199) g")
    stream = begun(make("public.p"))
    assert len(stream.rows) == 200
    # From one partition to the other.
    db.execute("DELETE FROM p WHERE id = 150")
    db.execute("UPDATE p SET id = 150, v = 'moved' WHERE id = 1")
    db.execute("TRUNCATE p100")
    stream.run()
    # The truncation of a single partition is not part of a stream of the whole.
    assert set(source_table(db, "p", "id")) <= set(stream.table("id"))


def test_filters_and_column_lists_hold_for_snapshot_and_stream(db: Db, make: Make) -> None:
    db.execute("CREATE PUBLICATION part FOR TABLE orders (id, name) WHERE (id > 10)")
    db.execute("INSERT INTO orders VALUES (1, 'a', 1, 'x'), (11, 'b', 1, 'x')")
    stream = begun(make(publication="part"))
    db.execute("INSERT INTO orders VALUES (2, 'c', 1, 'x'), (12, 'd', 1, 'x')")
    stream.run()
    assert [(row["id"], row["name"]) for row in stream.rows] == [(11, "b"), (12, "d")]
    assert "amount" not in stream.rows[0]


def test_generated_columns_are_the_same_in_both(db: Db, make: Make) -> None:
    db.execute(
        "CREATE TABLE g (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 2) STORED,"
        " v int GENERATED ALWAYS AS (id * 3) VIRTUAL)"
    )
    db.execute("INSERT INTO g VALUES (1)")
    stream = begun(make("public.g"))
    db.execute("INSERT INTO g VALUES (2)")
    stream.run()
    assert [(row["id"], row["s"]) for row in stream.rows] == [(1, 2), (2, 4)]
    # What is computed when it is read is not in the WAL, so it is in neither.
    assert "v" not in stream.rows[0]


def test_any_name_works(db: Db, make: Make) -> None:
    db.execute('CREATE SCHEMA "We ird"')
    db.execute('CREATE TABLE "We ird"."na.me" ("I""d" int PRIMARY KEY, "\u00e4 \u540d" text)')
    db.execute('INSERT INTO "We ird"."na.me" VALUES (1, \'\u00fc\')')
    stream = begun(make('"We ird"."na.me"'))
    db.execute('INSERT INTO "We ird"."na.me" VALUES (2, \'\U0001f600\')')
    stream.run()
    assert [(row['I"d'], row["\u00e4 \u540d"]) for row in stream.rows] == [
        (1, "\u00fc"),
        (2, "\U0001f600"),
    ]


def test_sixteen_hundred_columns_work(db: Db, make: Make) -> None:
    columns = ", ".join(f"c{number} int" for number in range(1599))
    db.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
    db.execute("INSERT INTO wide (id, c0, c1598) VALUES (1, 2, 3)")
    stream = begun(make("public.wide"))
    db.execute("INSERT INTO wide (id, c0, c1598) VALUES (2, 4, 6)")
    stream.run()
    assert [(row["id"], row["c0"], row["c1"], row["c1598"]) for row in stream.rows] == [
        (1, 2, None, 3),
        (2, 4, None, 6),
    ]


def test_a_column_with_the_name_of_an_added_one_is_refused(db: Db, make: Make) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY, _op text)")
    with pytest.raises(PenstockError) as caught:
        make("public.t").run()
    assert caught.value.code == "META_PREFIX"
    db.execute("INSERT INTO t VALUES (1, 'x')")
    [row] = make("public.t", metaPrefix="cdc_").run()
    assert (row["_op"], row["cdc_op"]) == ("x", "snapshot")


def test_a_large_transaction_comes_in_pieces(db: Db, stream: Stream) -> None:
    """So the memory of the task does not grow with it; a million rows are in the benchmark."""
    begun(stream)
    db.execute("INSERT INTO orders SELECT g, md5(g::text) FROM generate_series(1, 100000) g")
    reader = stream.reader
    assert reader is not None
    end = reader.latestOffset(stream.offsets[-1], None)  # type: ignore[arg-type]
    [partition] = reader.partitions(stream.offsets[-1], end)
    sizes = [batch.num_rows for batch in reader.read(partition)]
    assert sum(sizes) == 100_000
    assert max(sizes) <= 50_000
