"""What is checked and made before the first row: the landing table, the merge, its task."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import types as spark

from penstock.errors import OptionError, SchemaError
from penstock.snowflake import preflight
from penstock.snowflake.preflight import plans_for
from tests.unit.snowflake.sink.conftest import Sink

LONG, TEXT = spark.LongType(), spark.StringType()
CHANGES = spark.StructType(
    [
        spark.StructField("id", LONG),
        spark.StructField("Some Name", TEXT),
        spark.StructField("_op", TEXT),
        spark.StructField("_lsn", LONG),
        spark.StructField("_ordinal", LONG),
        spark.StructField("_commit_time", spark.TimestampType()),
        spark.StructField("_xid", LONG),
        spark.StructField("_unchanged", spark.ArrayType(TEXT)),
    ]
)
MERGE = {"merge": "true", "keyColumns": "id", "warehouse": "PENSTOCK"}


def test_the_landing_table_and_the_plan_have_the_targets_names(sink: Sink) -> None:
    sink.query(f'CREATE TABLE {sink.table} (ID NUMBER(38,0), "SOME NAME" VARCHAR(50))')
    plans = plans_for(sink.options(**MERGE, landingSchema="LANDED"), CHANGES)
    names = [row[0] for row in sink.query(f"DESCRIBE TABLE LANDED.{sink.table}_LANDING")]
    assert names == [
        "ID", "SOME NAME", "_OP", "_LSN", "_ORDINAL", "_COMMIT_TIME", "_XID", "_UNCHANGED",
        "_CHANNEL", "_OFFSET",
    ]  # fmt: skip
    assert plans.merge is not None
    assert plans.merge.key == ("ID",)
    assert [(c.name, c.source_name) for c in plans.merge.columns] == [
        ("ID", "id"),
        ("SOME NAME", "Some Name"),
    ]
    assert (plans.merge.meta.op, plans.merge.meta.offset) == ("_OP", "_OFFSET")
    assert plans.sink.offset_column == "_OFFSET"
    assert pickle.loads(pickle.dumps(plans)) == plans  # noqa: S301 - our own


def test_rows_that_are_no_changes_are_refused_before_anything_is_made(sink: Sink) -> None:
    plain = spark.StructType([spark.StructField("id", LONG)])
    with pytest.raises(SchemaError, match=r"'_op'.*postgres_cdc"):
        plans_for(sink.options(**MERGE), plain)
    with pytest.raises(OptionError, match=r"keyColumns.*'nr' is not a column.*id"):
        plans_for(sink.options(**(MERGE | {"keyColumns": "nr"})), CHANGES)
    assert sink.query(f"SHOW TABLES LIKE '{sink.table}%'") == []


def test_a_schedule_makes_a_task_once(sink: Sink) -> None:
    options = sink.options(**MERGE, mergeSchedule="5 minutes")
    plans_for(options, CHANGES)
    preflight._CHECKED.clear()
    plans_for(options, CHANGES)
    names = [row[1] for row in sink.query("SHOW TASKS") if row[1] == f"{sink.table}_MERGE"]
    assert len(names) == 1


def test_the_tables_are_not_looked_at_for_every_batch(sink: Sink) -> None:
    plain = spark.StructType([spark.StructField("id", LONG)])
    plans_for(sink.options(), plain)
    before = sink.emulator.calls()
    plans_for(sink.options(), plain)
    assert sink.emulator.calls() == before


def test_names_that_spark_does_not_tell_apart_are_an_error(sink: Sink) -> None:
    double = spark.StructType([spark.StructField("a", LONG), spark.StructField("A", LONG)])
    with pytest.raises(SchemaError, match="Rename one of them"):
        plans_for(sink.options(), double)
