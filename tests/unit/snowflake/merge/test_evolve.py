# ruff: noqa: S608 - the names are ours

from __future__ import annotations

import pytest

from penstock.errors import ResourceError, SchemaError
from penstock.snowflake.merge import (
    MergeColumn,
    MergePlan,
    MetaColumns,
    apply_merge,
    evolve_statements,
    prepare_merge,
)
from tests.support.merge import LANDING, TARGET, Hooked, MergeTables, changes


def test_a_plan_is_made_from_the_tables(tables: MergeTables) -> None:
    hooked = Hooked(tables.connection)

    plan = prepare_merge(hooked, TARGET, LANDING, ["id"], source_names={"a": "A"})

    assert plan.key == ("id",)
    assert [(c.name, c.source_name) for c in plan.columns] == [("id", "id"), ("a", "A"), ("b", "b")]
    assert plan.columns[0].type == "NUMBER(10,0)"
    assert hooked.statements == [f"DESCRIBE TABLE {LANDING}", f"DESCRIBE TABLE {TARGET}"]


def test_a_column_that_the_target_lacks_is_added_and_merged(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (7, 'old', 'old')")
    tables.run(f'ALTER TABLE {LANDING} ADD COLUMN "new one" NUMBER(5,0)')
    tables.land(changes(("insert", {"id": 1, "a": "x", "b": "y", "new one": 5})))

    plan = prepare_merge(tables.connection, TARGET, LANDING, ["id"])
    apply_merge(tables.connection, plan)

    assert tables.target() == [(1, "x", "y", 5), (7, "old", "old", None)]


def test_a_target_that_must_not_change_is_left_alone(tables: MergeTables) -> None:
    tables.run(f'ALTER TABLE {LANDING} ADD COLUMN "n" NUMBER(5,0)')

    with pytest.raises(
        SchemaError, match=r'TARGET_TABLE.*evolveSchema.*ADD COLUMN IF NOT EXISTS "n"'
    ):
        prepare_merge(tables.connection, TARGET, LANDING, ["id"], is_evolving=False)


def test_a_table_that_is_no_landing_table_is_refused(tables: MergeTables) -> None:
    with pytest.raises(ResourceError, match=r'LANDING_TABLE.*"_op", "_lsn"'):
        prepare_merge(tables.connection, TARGET, TARGET, ["id"])


def test_a_table_that_is_not_there_is_named(tables: MergeTables) -> None:
    with pytest.raises(ResourceError, match=r'SNOWFLAKE_OBJECT.*"DB"."S"."nothing"'):
        prepare_merge(tables.connection, TARGET, '"DB"."S"."nothing"', ["id"])


@pytest.mark.parametrize(
    ("landed", "there", "statement"),
    [
        ("NUMBER(10,0)", "NUMBER(10,0)", None),
        ("NUMBER(10,0)", "NUMBER(19,0)", None),
        ("NUMBER(19,0)", "NUMBER(10,0)", "NUMBER(19,0)"),
        ("NUMBER(20,4)", "NUMBER(10,4)", "NUMBER(20,4)"),
        ("VARCHAR(16777216)", "VARCHAR(10)", "VARCHAR(16777216)"),
        ("VARCHAR(10)", "VARCHAR(16777216)", None),
        ("TIMESTAMP_TZ(9)", "TIMESTAMP_TZ(9)", None),
        ("VARIANT", "VARIANT", None),
    ],
)
def test_numbers_and_texts_are_widened(landed: str, there: str, statement: str | None) -> None:
    plan = MergePlan(TARGET, LANDING, ("c",), (MergeColumn("c", landed),))

    wanted = (
        []
        if statement is None
        else [f'ALTER TABLE {TARGET} ALTER COLUMN "c" SET DATA TYPE {statement}']
    )
    assert evolve_statements(plan, {"c": there}) == wanted


@pytest.mark.parametrize(
    ("landed", "there"),
    [
        ("NUMBER(10,2)", "NUMBER(10,0)"),
        ("VARCHAR(10)", "NUMBER(10,0)"),
        ("TIMESTAMP_TZ(9)", "TIMESTAMP_NTZ(9)"),
        ("TIMESTAMP_TZ(9)", "TIMESTAMP_TZ(3)"),
        ("ARRAY", "VARIANT"),
    ],
)
def test_another_type_is_refused_with_both_named(landed: str, there: str) -> None:
    plan = MergePlan(TARGET, LANDING, ("c",), (MergeColumn("c", landed),))

    with pytest.raises(SchemaError) as caught:
        evolve_statements(plan, {"c": there})

    assert caught.value.fact == f"it is {there}, and {landed} in the landing table"


def test_another_prefix_gives_other_names() -> None:
    meta = MetaColumns.with_prefix("cdc_")

    assert meta.names() == (
        "cdc_op",
        "cdc_lsn",
        "cdc_ordinal",
        "cdc_unchanged",
        "_channel",
        "_offset",
    )
    assert meta.unused == ("cdc_commit_time", "cdc_xid")
