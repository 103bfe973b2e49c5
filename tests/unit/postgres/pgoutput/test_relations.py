from __future__ import annotations

import pytest

from penstock.errors import SchemaError
from penstock.postgres.pgoutput import Relation
from tests.support.pgoutput import Slot


def names(relation: Relation) -> list[str]:
    return [column.name for column in relation.columns]


def test_a_relation_says_what_the_server_knows(slot: Slot) -> None:
    slot.run(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (id bigint PRIMARY KEY, price numeric(12,2), code varchar(7))",
    )
    slot.create()
    slot.run("INSERT INTO shop.t VALUES (1, 2, 'c')")

    (row,) = slot.rows()

    oid = slot.connection.execute("SELECT 'shop.t'::regclass::oid::int").fetchone()
    relation = row.relation
    assert oid == (relation.oid,)
    assert (relation.full_name, relation.replica_identity) == ("shop.t", "d")
    described = [(c.name, c.type_oid, c.typmod, c.is_key) for c in relation.columns]
    assert described == [
        ("id", 20, -1, True),
        ("price", 1700, (12 << 16 | 2) + 4, False),
        ("code", 1043, 7 + 4, False),
    ]


def test_rows_around_a_change_of_the_table_have_the_definition_of_their_time(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    slot.create()
    slot.transaction(
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN b text",
        "INSERT INTO t VALUES (2, 'a', 'b')",
        "ALTER TABLE t DROP COLUMN a",
        "INSERT INTO t VALUES (3, 'b')",
        "ALTER TABLE t RENAME COLUMN b TO c",
        "INSERT INTO t VALUES (4, 'c')",
    )
    slot.run("INSERT INTO t VALUES (5, 'c')")

    rows = slot.rows()

    assert [row.short[2] for row in rows] == [
        {"id": "1", "a": "a"},
        {"id": "2", "a": "a", "b": "b"},
        {"id": "3", "b": "b"},
        {"id": "4", "c": "c"},
        {"id": "5", "c": "c"},
    ]
    assert rows[3].relation == rows[4].relation


def test_a_changed_type_is_another_definition_and_its_values_are_as_written(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    slot.create()
    slot.transaction(
        "INSERT INTO t VALUES (1, 10)",
        "ALTER TABLE t ALTER v TYPE text USING 'n' || v",
        "INSERT INTO t VALUES (2, 'x')",
    )

    # The rewrite of the table is not in the stream: it is no change of rows.
    seen = [(row.relation.columns[1].type_oid, row.values) for row in slot.rows()]
    assert seen == [(23, ("1", "10")), (25, ("2", "x"))]


def test_a_repeated_definition_does_not_part_the_rows(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY)")
    slot.create()
    slot.run("INSERT INTO t VALUES (1)", "GRANT SELECT ON t TO PUBLIC", "INSERT INTO t VALUES (2)")
    messages = slot.messages()

    first, second = slot.rows()

    assert [m[:1] for m in messages].count(b"R") == 2
    assert first.relation == second.relation


def test_a_table_that_was_dropped_and_made_again_is_another_one(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY)")
    slot.create()
    slot.run(
        "INSERT INTO t VALUES (1)",
        "DROP TABLE t",
        "CREATE TABLE t (a text, b text)",
        "INSERT INTO t VALUES ('x', 'y')",
    )

    first, second = slot.rows()

    assert (first.values, second.values) == (("1",), ("x", "y"))
    assert first.relation.oid != second.relation.oid


def test_changes_of_several_tables_are_told_apart(slot: Slot) -> None:
    slot.run(*(f"CREATE TABLE t{i} (id int PRIMARY KEY, v{i} text)" for i in range(5)))
    slot.create()
    inserts = [
        f"INSERT INTO t{i} VALUES ({n}, 'v{n}')"  # noqa: S608
        for n in range(20)
        for i in range(5)
    ]
    slot.transaction(*inserts)

    rows = slot.rows()

    assert [(row.relation.name, row.values[0]) for row in rows] == [
        (f"t{i}", str(n)) for n in range(20) for i in range(5)
    ]
    assert [row.ordinal for row in rows] == list(range(0, 200, 2))


def test_only_wanted_tables_give_rows_but_all_count(slot: Slot) -> None:
    slot.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    slot.create()
    slot.transaction(
        "INSERT INTO other VALUES (1)",
        "INSERT INTO t VALUES (1)",
        "TRUNCATE other",
        "INSERT INTO t VALUES (2)",
    )
    asked: list[str] = []

    def wanted(relation: Relation) -> bool:
        asked.append(relation.name)
        return relation.name == "t"

    rows = slot.rows(wanted=wanted)

    assert [(row.ordinal, row.values) for row in rows] == [(2, ("1",)), (6, ("2",))]
    assert sorted(asked) == ["other", "t"]


def test_quoted_and_foreign_names_and_values_come_as_they_are(slot: Slot) -> None:
    slot.run(
        'CREATE SCHEMA "Größe"',
        'CREATE TABLE "Größe"."a ""b"" ; c" ("名 前" text PRIMARY KEY, "select" text)',
    )
    slot.create()
    values = ("日本語", "a\tb\n\\ '\" {} 🚰 \u200b")
    slot.connection.execute('INSERT INTO "Größe"."a ""b"" ; c" VALUES (%s, %s)'.encode(), values)

    (row,) = slot.rows()

    assert (row.relation.schema, row.relation.name) == ("Größe", 'a "b" ; c')
    assert (names(row.relation), row.values) == (["名 前", "select"], values)


def test_a_table_of_1600_columns_is_read(slot: Slot) -> None:
    columns = ", ".join(f"c{i} int" for i in range(1600))
    slot.run(f"CREATE TABLE t ({columns})", "ALTER TABLE t REPLICA IDENTITY FULL")
    slot.create()
    slot.run(
        "INSERT INTO t SELECT FROM generate_series(1, 3)",
        "UPDATE t SET c0 = 7, c1599 = 8",
        "DELETE FROM t",
    )

    rows = slot.rows()

    nulls = (None,) * 1600
    full = ("7", *nulls[:1598], "8")
    assert [(row.op, row.values) for row in rows] == (
        [("INSERT", nulls)] * 3 + [("UPDATE", full)] * 3 + [("DELETE", full)] * 3
    )


@pytest.mark.parametrize("is_via_root", [True, False])
def test_partitions_are_the_root_or_themselves(slot: Slot, is_via_root: bool) -> None:
    slot.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        # With its columns the other way round.
        "CREATE TABLE t_high (v text, id int PRIMARY KEY)",
        "ALTER TABLE t ATTACH PARTITION t_high FOR VALUES FROM (10) TO (20)",
        f"ALTER PUBLICATION pub SET (publish_via_partition_root = {is_via_root})",
    )
    slot.create()
    slot.run("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET id = 11", "TRUNCATE t")

    rows = [row.short for row in slot.rows()]

    low, high = ("t", "t") if is_via_root else ("t_low", "t_high")
    # A row that moves to another partition is a delete and an insert for the server too.
    assert rows[:3] == [
        (low, "INSERT", {"id": "1", "v": "a"}),
        (low, "DELETE", {"id": "1"}),
        (high, "INSERT", {"id": "11", "v": "a"}),
    ]
    emptied = (
        [("t", "TRUNCATE")] if is_via_root else [("t_high", "TRUNCATE"), ("t_low", "TRUNCATE")]
    )
    assert sorted(row[:2] for row in rows[3:]) == emptied


def test_a_column_list_and_a_row_filter_are_the_servers_business(slot: Slot) -> None:
    slot.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
        "DROP PUBLICATION pub",
        "CREATE PUBLICATION pub FOR TABLE t (id, b) WHERE (id > 1)",
    )
    slot.create()
    slot.run("INSERT INTO t VALUES (1, 'a', 'b'), (2, 'a', 'b')")

    assert slot.short_rows() == [("t", "INSERT", {"id": "2", "b": "b"})]


def test_a_key_column_that_the_stream_lacks_is_an_error(slot: Slot) -> None:
    slot.run("CREATE TABLE t (a int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY FULL")
    slot.create()
    slot.run("INSERT INTO t VALUES (1)")

    with pytest.raises(SchemaError, match=r"public\.t: the stream does not carry the column 'id'"):
        slot.rows(primary_key=lambda _relation: ("id",))


def test_user_types_and_messages_make_no_rows(slot: Slot) -> None:
    slot.run("CREATE TYPE mood AS ENUM ('fine')", "CREATE TABLE t (m mood)")
    slot.create()
    slot.run("SELECT pg_logical_emit_message(true, 'p', 'x')", "INSERT INTO t VALUES ('fine')")

    assert b"Y" in [message[:1] for message in slot.messages()]
    assert slot.short_rows() == [("t", "INSERT", {"m": "fine"})]
