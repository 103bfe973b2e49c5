from __future__ import annotations

import pytest

from penstock.postgres.pgoutput import Relation
from tests.support.pgoutput import Slot

# Compresses badly, so that PostgreSQL stores it out of line.
LARGE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i)"
LARGE_SIZE = 400 * 32


def key_id(_relation: Relation) -> tuple[str, ...]:
    return ("id",)


def test_insert_update_delete_and_truncate_are_rows_in_their_order(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    slot.create()
    slot.run(
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "UPDATE t SET v = 'uno' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "TRUNCATE t",
        "INSERT INTO t VALUES (3, 'three')",
    )

    assert slot.short_rows() == [
        ("t", "INSERT", {"id": "1", "v": "one"}),
        ("t", "INSERT", {"id": "2", "v": "two"}),
        ("t", "UPDATE", {"id": "1", "v": "uno"}),
        ("t", "DELETE", {"id": "2"}),
        ("t", "TRUNCATE", {}),
        ("t", "INSERT", {"id": "3", "v": "three"}),
    ]


def test_a_null_is_not_an_empty_string(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, v text, w text)")
    slot.create()
    slot.run("INSERT INTO t VALUES (1, '', NULL), (2, NULL, ''), (3, NULL, NULL), (4, '', '')")

    assert [row.values for row in slot.rows()] == [
        ("1", "", None),
        ("2", None, ""),
        ("3", None, None),
        ("4", "", ""),
    ]


@pytest.mark.parametrize(
    ("identity", "deleted"),
    [
        ("DEFAULT", {"id": "1"}),
        ("USING INDEX t_code", {"code": "a"}),
        ("FULL", {"id": "1", "code": "a", "v": "x"}),
    ],
)
def test_a_delete_has_what_the_replica_identity_says(
    slot: Slot, identity: str, deleted: dict[str, str]
) -> None:
    slot.run(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v text)",
        "CREATE UNIQUE INDEX t_code ON t (code)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
    )
    slot.create()
    slot.run("INSERT INTO t VALUES (1, 'a', 'x')", "DELETE FROM t")

    assert slot.short_rows()[1:] == [("t", "DELETE", deleted)]


def test_a_table_without_identity_gives_its_inserts_and_truncations(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int)", "ALTER TABLE t REPLICA IDENTITY NOTHING")
    slot.create()
    slot.run("INSERT INTO t VALUES (1)", "TRUNCATE t")

    assert slot.short_rows() == [("t", "INSERT", {"id": "1"}), ("t", "TRUNCATE", {})]


def test_a_change_of_key_is_a_delete_and_an_insert(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    slot.create()
    slot.run(
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "UPDATE t SET id = id + 10 WHERE id = 2",
        "UPDATE t SET v = 'c' WHERE id = 1",
    )

    rows = slot.rows()

    assert [row.short for row in rows[2:]] == [
        ("t", "DELETE", {"id": "2"}),
        ("t", "INSERT", {"id": "12", "v": "b"}),
        ("t", "UPDATE", {"id": "1", "v": "c"}),
    ]
    assert [row.ordinal for row in rows] == [0, 2, 0, 1, 0]


def test_under_full_identity_the_caller_says_what_the_key_is(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    slot.create()
    slot.run(
        "INSERT INTO t VALUES (1, 'a'), (2, NULL)",
        "UPDATE t SET id = id + 10, v = 'z' WHERE id = 1",
        "UPDATE t SET v = 'c' WHERE id = 2",
    )

    assert slot.short_rows(primary_key=key_id)[2:] == [
        ("t", "DELETE", {"id": "1", "v": "a"}),
        ("t", "INSERT", {"id": "11", "v": "z"}),
        ("t", "UPDATE", {"id": "2", "v": "c"}),
    ]
    assert [op for _, op, _ in slot.short_rows()[2:]] == ["UPDATE", "UPDATE"]


def test_keys_that_change_places_keep_their_order(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int, sub text, v int, PRIMARY KEY (id, sub))")
    slot.create()
    slot.transaction(
        "INSERT INTO t VALUES (1, 'a', 0)",
        "UPDATE t SET sub = 'b'",
        "UPDATE t SET id = 2",
        "UPDATE t SET v = 1",
    )

    assert [(row.op, row.ordinal, row.values) for row in slot.rows()] == [
        ("INSERT", 0, ("1", "a", "0")),
        ("DELETE", 2, ("1", "a", None)),
        ("INSERT", 3, ("1", "b", "0")),
        ("DELETE", 4, ("1", "b", None)),
        ("INSERT", 5, ("2", "b", "0")),
        ("UPDATE", 6, ("2", "b", "1")),
    ]


def test_an_unchanged_large_value_is_named_not_invented(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, big text, v int)")
    slot.create()
    slot.run(
        f"INSERT INTO t VALUES (1, {LARGE}, 1)",  # noqa: S608
        "UPDATE t SET v = 2",
        "UPDATE t SET id = 7",
        "UPDATE t SET big = NULL",
    )

    insert, update, delete, moved, emptied = slot.rows()

    assert len(insert.values[1] or "") == LARGE_SIZE
    assert (update.values, update.unchanged) == (("1", None, "2"), ("big",))
    assert (delete.op, delete.unchanged) == ("DELETE", ())
    assert (moved.op, moved.values, moved.unchanged) == ("INSERT", ("7", None, "2"), ("big",))
    assert (emptied.values, emptied.unchanged) == (("7", None, "2"), ())


def test_under_full_identity_an_unchanged_large_value_comes_from_the_old_row(slot: Slot) -> None:
    slot.run(
        "CREATE TABLE t (id int PRIMARY KEY, big text, v int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    slot.create()
    slot.run(
        f"INSERT INTO t VALUES (1, {LARGE}, 1)",  # noqa: S608
        "UPDATE t SET v = 2",
        "UPDATE t SET id = 7, v = NULL",
    )

    insert, update, delete, moved = slot.rows(primary_key=key_id)

    assert update.values == ("1", insert.values[1], "2")
    assert moved.values == ("7", insert.values[1], None)
    assert delete.values == ("1", insert.values[1], "2")
    assert {row.unchanged for row in (insert, update, delete, moved)} == {()}


def test_a_large_value_in_the_key_is_known_though_it_did_not_change(slot: Slot) -> None:
    slot.run(
        "CREATE TABLE t (id text NOT NULL, v int)",
        # An index on the value itself takes 2700 bytes at most; out of line it can be smaller.
        "ALTER TABLE t ALTER id SET STORAGE EXTERNAL",
        "CREATE UNIQUE INDEX t_id ON t (id)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id",
        "ALTER TABLE t SET (toast_tuple_target = 128)",
    )
    slot.create()
    slot.run("INSERT INTO t VALUES (repeat('k', 2600), 1)", "UPDATE t SET v = 2")

    update = slot.rows()[-1]

    assert (update.op, update.values, update.unchanged) == ("UPDATE", ("k" * 2600, "2"), ())


def test_one_truncate_of_several_tables_is_a_row_for_each(slot: Slot) -> None:
    slot.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, v text)",
        "CREATE TABLE c (id int PRIMARY KEY)",
    )
    slot.create()
    slot.transaction(
        "INSERT INTO a VALUES (1)", "TRUNCATE a, c CASCADE", "INSERT INTO a VALUES (2)"
    )

    rows = slot.rows()

    assert sorted((row.ordinal, *row.short[:2]) for row in rows) == [
        (0, "a", "INSERT"),
        (2, "a", "TRUNCATE"),
        (2, "b", "TRUNCATE"),
        (2, "c", "TRUNCATE"),
        (4, "a", "INSERT"),
    ]


def test_a_table_without_columns_has_rows(slot: Slot) -> None:
    slot.run("CREATE TABLE t ()")
    slot.create()
    slot.run("INSERT INTO t DEFAULT VALUES", "TRUNCATE t", "INSERT INTO t DEFAULT VALUES")

    assert [row.short for row in slot.rows()] == [
        ("t", "INSERT", {}),
        ("t", "TRUNCATE", {}),
        ("t", "INSERT", {}),
    ]


def test_rows_larger_than_a_megabyte_come_whole(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    slot.create()
    slot.run(
        "INSERT INTO t SELECT i, repeat('xyz', 700000), repeat('é', i) FROM generate_series(1, 9) i"
    )

    assert [row.values for row in slot.rows()] == [
        (str(i), "xyz" * 700_000, "é" * i) for i in range(1, 10)
    ]
