# ruff: noqa: S608 - the names are ours

from __future__ import annotations

import pytest
from fakesnow.instance import FakeSnow

from penstock.errors import OptionError, RowError, SchemaError
from penstock.snowflake.merge import MergeColumn, MergePlan, MergeResult, apply_merge
from tests.support.merge import LANDING, TARGET, Change, MergeTables, changes


def test_the_latest_row_of_a_key_wins_in_whatever_order_rows_landed(tables: MergeTables) -> None:
    rows = changes(
        ("insert", {"id": 1, "a": "first", "b": "x"}),
        ("update", {"id": 1, "a": "second", "b": "x"}),
        ("update", {"id": 1, "a": "third", "b": "y"}),
    )
    tables.land(rows[::-1])

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "third", "y")]
    assert tables.landed_count() == 0


def test_places_within_a_transaction_order_its_rows(tables: MergeTables) -> None:
    tables.land(
        [
            Change("update", {"id": 1, "a": "late", "b": None}, (5, 10)),
            Change("insert", {"id": 1, "a": "early", "b": None}, (5, 4)),
        ]
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "late", None)]


def test_the_result_counts_what_happened_to_the_target(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'b'), (2, 'a', 'b'), (3, 'a', 'b')")
    tables.land(
        changes(
            ("update", {"id": 1, "a": "new", "b": "b"}),
            ("delete", {"id": 2}),
            ("insert", {"id": 4, "a": "four", "b": None}),
            ("insert", {"id": 5, "a": "five", "b": None}),
        )
    )

    result = apply_merge(tables.connection, tables.plan)

    assert result == MergeResult(
        row_count=4, inserted_count=2, updated_count=1, deleted_count=1, is_truncated=False
    )


def test_a_delete_of_a_row_that_is_not_there_is_nothing(tables: MergeTables) -> None:
    tables.land(changes(("insert", {"id": 1, "a": "x", "b": "y"}), ("delete", {"id": 1})))

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == []


def test_unchanged_columns_keep_the_value_of_the_target(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'old', 'large'), (2, 'old', 'other')")
    tables.land(changes(("update", {"id": 1, "a": "new", "b": None}, ["b"])))

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "new", "large"), (2, "old", "other")]


def test_an_insert_and_a_partial_update_in_one_batch_make_one_whole_row(
    tables: MergeTables,
) -> None:
    tables.land(
        changes(
            ("insert", {"id": 1, "a": "first", "b": "large"}),
            ("update", {"id": 1, "a": "second", "b": None}, ["b"]),
            ("update", {"id": 1, "a": "third", "b": None}, ["b"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "third", "large")]


def test_columns_get_their_values_from_different_earlier_rows(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a0', 'b0')")
    tables.land(
        changes(
            ("update", {"id": 1, "a": "a1", "b": None}, ["b"]),
            ("update", {"id": 1, "a": None, "b": "b1"}, ["a"]),
            ("update", {"id": 1, "a": None, "b": None}, ["a", "b"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "a1", "b1")]


def test_null_is_a_value_and_not_unchanged(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a0', 'b0'), (2, 'a0', 'b0')")
    tables.land(
        changes(
            ("update", {"id": 1, "a": "a1", "b": None}),
            # Null first, then unchanged: it is the null that has not changed.
            ("update", {"id": 2, "a": "a1", "b": None}),
            ("update", {"id": 2, "a": "a2", "b": None}, ["b"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "a1", None), (2, "a2", None)]


def test_unchanged_may_be_null_instead_of_empty(tables: MergeTables) -> None:
    tables.land([Change("insert", {"id": 1, "a": "x", "b": "y"}, (1, 0), None)])

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "x", "y")]


def test_values_from_before_a_delete_do_not_come_back(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a0', 'b0')")
    tables.land(
        changes(
            ("update", {"id": 1, "a": "a1", "b": "before"}),
            ("delete", {"id": 1}),
            ("insert", {"id": 1, "a": "a2", "b": "after"}),
            ("update", {"id": 1, "a": "a3", "b": None}, ["b"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "a3", "after")]


def test_a_change_of_key_leaves_no_old_row(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'b')")
    tables.land(changes(("move", {"old": {"id": 1}, "id": 2, "a": "a", "b": "b"})))

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(2, "a", "b")]


def test_a_changed_key_takes_its_large_values_along(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'large one'), (2, 'a', 'large two')")
    tables.land(
        changes(
            ("delete", {"id": 2}),
            ("move", {"old": {"id": 1}, "id": 2, "a": "a", "b": None}, ["b"]),
            ("insert", {"id": 1, "a": "new", "b": "new one"}),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "new", "new one"), (2, "a", "large one")]


def test_keys_that_change_many_times_in_a_batch_take_their_values_along(
    tables: MergeTables,
) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'large')")
    tables.land(
        changes(
            *(
                ("move", {"old": {"id": n}, "id": n + 1, "a": f"a{n}", "b": None}, ["b"])
                for n in range(1, 30)
            ),
            ("move", {"old": {"id": 30}, "id": 1, "a": None, "b": None}, ["a", "b"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "a29", "large")]


def test_keys_can_be_swapped_through_a_third(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'one', 'large one'), (2, 'two', 'large two')")
    tables.land(
        changes(
            ("move", {"old": {"id": 1}, "id": 9, "a": "one", "b": None}, ["b"]),
            ("move", {"old": {"id": 2}, "id": 1, "a": "two", "b": None}, ["b"]),
            ("move", {"old": {"id": 9}, "id": 2, "a": "one", "b": None}, ["b"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "two", "large two"), (2, "one", "large one")]


def test_truncate_removes_all_rows_and_voids_earlier_ones(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'b'), (2, 'a', 'b')")
    tables.land(
        changes(
            ("insert", {"id": 3, "a": "void", "b": "void"}),
            ("truncate", {}),
            ("insert", {"id": 4, "a": "void", "b": "void"}),
            ("truncate", {}),
            ("insert", {"id": 1, "a": "after", "b": None}),
        )
    )

    result = apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "after", None)]
    assert tables.landed_count() == 0
    assert result.is_truncated


def test_a_batch_that_ends_with_a_truncate_leaves_nothing(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'b')")
    tables.land(changes(("insert", {"id": 3, "a": "void", "b": "void"}), ("truncate", {})))

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == []
    assert tables.landed_count() == 0


def test_a_snapshot_takes_the_place_of_all_that_was_there(tables: MergeTables) -> None:
    """Of a slot that was lost: what was deleted meanwhile is in no row of the stream."""
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'old', 'b'), (2, 'deleted meanwhile', 'b')")
    tables.land(
        changes(
            ("update", {"id": 2, "a": "before it", "b": "b"}),
            ("snapshot", {"id": 1, "a": "now", "b": None}),
            ("update", {"id": 1, "a": "after it", "b": None}, ["b"]),
        )
    )

    result = apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "after it", None)]
    assert tables.landed_count() == 0
    assert result.is_truncated


def test_a_snapshot_that_was_broken_off_is_void(tables: MergeTables) -> None:
    """A batch that is run again takes a new snapshot; rows of the first one have landed."""
    tables.land([Change("snapshot", {"id": n, "a": "first"}, (5, -1)) for n in (1, 2, 3)], "first")
    tables.land([Change("snapshot", {"id": n, "a": "second"}, (7, -1)) for n in (1, 4)], "second")

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "second", None), (4, "second", None)]
    assert tables.landed_count() == 0


def test_rows_of_a_snapshot_wait_until_all_of_it_is_there(tables: MergeTables) -> None:
    """A task may run when half of them have landed: they are left to the query's merge."""
    tables.run(f"INSERT INTO {TARGET} VALUES (9, 'there', 'b')")
    tables.land(
        [
            Change("update", {"id": 9, "a": "changed", "b": "b"}, (3, 0)),
            Change("snapshot", {"id": 1, "a": "half", "b": None}, (5, -1)),
        ]
    )

    apply_merge(tables.connection, tables.plan, is_complete=False)

    assert tables.target() == [(9, "changed", "b")]
    assert tables.landed_count() == 1


@pytest.mark.parametrize("op", ["insert", "update", "delete", "snapshot"])
def test_null_in_a_key_column_is_refused(tables: MergeTables, op: str) -> None:
    tables.land(changes(("insert", {"id": 1, "a": "x", "b": "y"}), (op, {"id": None, "a": "x"})))

    with pytest.raises(RowError, match=r"MERGE_KEY_NULL.*1 landed rows have null in a key column"):
        apply_merge(tables.connection, tables.plan)

    assert tables.target() == []
    assert tables.landed_count() == 2


@pytest.mark.parametrize(("op", "code"), [("upsert", "MERGE_OP"), (None, "MERGE_OP")])
def test_an_unknown_operation_is_refused(tables: MergeTables, op: str, code: str) -> None:
    tables.land([Change(op, {"id": 1}, (1, 0))])

    with pytest.raises(RowError, match=code):
        apply_merge(tables.connection, tables.plan)

    assert tables.landed_count() == 1


def test_a_row_without_a_place_in_the_order_is_refused(tables: MergeTables) -> None:
    tables.land([Change("insert", {"id": 1}, (None, 0))])  # type: ignore[arg-type]

    with pytest.raises(RowError, match="MERGE_ORDER"):
        apply_merge(tables.connection, tables.plan)


def test_a_key_of_many_columns_is_one_key(snow: FakeSnow) -> None:
    columns = {"k1": "NUMBER(10,0)", "k2": "VARCHAR", "v": "VARCHAR", "k3": "DATE"}
    tables = MergeTables(snow, columns, ["k3", "k1", "k2"])
    day = {"k3": "2026-01-01"}
    tables.land(
        changes(
            ("insert", {"k1": 1, "k2": "x", "v": "large", **day}),
            ("insert", {"k1": 1, "k2": "y", "v": "other", **day}),
            (
                "move",
                {"old": {"k1": 1, "k2": "x", **day}, "k1": 2, "k2": "x", "v": None, **day},
                ["v"],
            ),
            ("delete", {"k1": 1, "k2": "y", **day}),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert [row[:3] for row in tables.target()] == [(2, "x", "large")]


def test_a_table_of_keys_alone_is_merged(snow: FakeSnow) -> None:
    tables = MergeTables(snow, {"k1": "NUMBER(10,0)", "k2": "VARCHAR"}, ["k1", "k2"])
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'x'), (2, 'x')")
    tables.land(
        changes(
            ("insert", {"k1": 1, "k2": "y"}),
            ("update", {"k1": 1, "k2": "x"}),
            ("move", {"old": {"k1": 2, "k2": "x"}, "k1": 3, "k2": "x"}),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "x"), (1, "y"), (3, "x")]


@pytest.mark.parametrize(
    ("type_", "one", "two"),
    [
        ("VARCHAR", "a", "a "),
        ("VARCHAR", "a", "A"),
        ("VARCHAR", "", " "),
        ("BOOLEAN", True, False),
        ("NUMBER(38,10)", "0.1", "0.1000000001"),
        ("FLOAT", 0.1, 0.1000000000001),
        ("BINARY", b"\x00", b"\x00\x00"),
        ("TIMESTAMP_NTZ", "2026-01-01 00:00:00.000001", "2026-01-01 00:00:00.000002"),
        ("TIMESTAMP_TZ", "2026-01-01 00:00:00+00", "2026-01-01 00:00:00+01"),
        ("TIME", "00:00:00", "00:00:01"),
        ("DATE", "2026-01-01", "2026-01-02"),
    ],
)
def test_keys_of_each_type_are_told_apart(
    snow: FakeSnow, type_: str, one: object, two: object
) -> None:
    tables = MergeTables(snow, {"k": type_, "v": "VARCHAR"}, ["k"])
    tables.land(
        changes(
            ("insert", {"k": one, "v": "one"}),
            ("insert", {"k": two, "v": "two"}),
            ("update", {"k": one, "v": "one again"}),
            ("update", {"k": two, "v": None}, ["v"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert sorted(row[1] for row in tables.target()) == ["one again", "two"]


def test_semi_structured_values_are_kept_as_they_are(snow: FakeSnow) -> None:
    columns = {"id": "NUMBER(10,0)", "v": "VARIANT", "arr": "ARRAY", "n": "NUMBER(5,0)"}
    tables = MergeTables(snow, columns, ["id"])
    tables.land(
        changes(
            ("insert", {"id": 1, "v": '{"a": [1, null]}', "arr": '["x", null]', "n": 1}),
            ("update", {"id": 1, "v": None, "arr": None, "n": 2}, ["v", "arr"]),
            ("insert", {"id": 2, "v": "null", "arr": "[]", "n": 1}),
            ("update", {"id": 2, "v": None, "arr": None, "n": 2}, ["v", "arr"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    found = tables.run(f'SELECT "id", TO_JSON("v"), TO_JSON("arr"), "n" FROM {TARGET} ORDER BY 1')
    assert found == [(1, '{"a":[1,null]}', '["x",null]', 2), (2, "null", "[]", 2)]


@pytest.mark.parametrize("name", ["we ird", 'qu"ote', "back\\slash", "é.ü", "C0", "select"])
def test_columns_of_any_name_are_merged_and_kept(snow: FakeSnow, name: str) -> None:
    columns = {"M_OP": "NUMBER(10,0)", name: "VARCHAR", f"{name}2": "VARCHAR"}
    tables = MergeTables(snow, columns, ["M_OP"])
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'large', 'x')")
    tables.land(changes(("update", {"M_OP": 1, name: None, f"{name}2": "y"}, [name])))

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "large", "y")]


def test_a_name_within_another_name_is_not_taken_for_it(snow: FakeSnow) -> None:
    columns = {"id": "NUMBER(10,0)", "a": "VARCHAR", 'x"a"y': "VARCHAR"}
    tables = MergeTables(snow, columns, ["id"])
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'old', 'large')")
    tables.land(changes(("update", {"id": 1, "a": None, 'x"a"y': None}, ['x"a"y'])))

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, None, "large")]


def test_unchanged_may_spell_a_column_in_the_source_s_way(snow: FakeSnow) -> None:
    tables = MergeTables(snow, {"ID": "NUMBER(10,0)", "BODY": "VARCHAR"}, ["ID"])
    plan = MergePlan(
        TARGET,
        LANDING,
        ("ID",),
        (MergeColumn("ID", "NUMBER(10,0)", "id"), MergeColumn("BODY", "VARCHAR", "body")),
    )
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'large')")
    tables.land(changes(("update", {"ID": 1, "BODY": None}, ["body"])))

    apply_merge(tables.connection, plan)

    assert tables.target() == [(1, "large")]


def test_columns_that_only_the_target_has_are_left_alone(tables: MergeTables) -> None:
    tables.run(f'ALTER TABLE {TARGET} ADD COLUMN "note" VARCHAR')
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'b', 'mine')")
    tables.land(
        changes(("update", {"id": 1, "a": "new", "b": "b"}), ("insert", {"id": 2, "a": "x"}))
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "new", "b", "mine"), (2, "x", None, None)]


def test_a_plan_without_a_fitting_key_is_refused() -> None:
    columns = (MergeColumn("id", "NUMBER(10,0)"), MergeColumn("v", "VARCHAR"))
    with pytest.raises(OptionError, match=r"MERGE_KEY.*has no key columns"):
        MergePlan(TARGET, LANDING, (), columns)
    with pytest.raises(OptionError, match=r'key columns \["ID"\] are not columns'):
        MergePlan(TARGET, LANDING, ("ID",), columns)
    with pytest.raises(SchemaError, match=r'\["_op"\] have names of the change stream'):
        MergePlan(TARGET, LANDING, ("id",), (*columns, MergeColumn("_op", "VARCHAR")))


def test_values_of_the_target_that_the_landing_type_cannot_hold_are_kept(snow: FakeSnow) -> None:
    tables = MergeTables(snow, {"id": "NUMBER(10,0)", "n": "NUMBER(5,0)", "v": "VARCHAR"}, ["id"])
    tables.run(
        f'CREATE OR REPLACE TABLE {TARGET} ("id" NUMBER(19,0), "n" NUMBER(19,0), "v" VARCHAR)'
    )
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 12345678901234, 'old')")
    tables.land(changes(("update", {"id": 1, "n": None, "v": "new"}, ["n"])))

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, 12345678901234, "new")]


def test_an_update_after_a_delete_takes_nothing_from_before_it(tables: MergeTables) -> None:
    """No source gives this; but if one did, the deleted value must not come back."""
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a0', 'b0')")
    tables.land(
        changes(
            ("update", {"id": 1, "a": "a1", "b": "before"}),
            ("delete", {"id": 1}),
            ("update", {"id": 1, "a": "a2", "b": None}, ["b"]),
        )
    )

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "a2", "b0")]
