from __future__ import annotations

import pickle

import pytest
from pyspark.sql.pandas.types import to_arrow_type

from penstock.postgres.model import Kind, PgType
from penstock.postgres.types import TypePolicy, column_type
from penstock.postgres.types.mapping import RULES, is_stated
from tests.unit.postgres.types.cases import CASES, Case
from tests.unit.postgres.types.support import Lab, shown

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.sql)


@each_case
def test_stream_and_snapshot_give_the_same_stated_values(lab: Lab, case: Case) -> None:
    sample = lab.sample(case)
    column = sample.column

    streamed = column.from_text(sample.texts)
    copied = column.from_snapshot(sample.copied)

    assert column.spark.simpleString() == case.spark
    assert streamed.type == copied.type == column.arrow
    assert shown(streamed) == shown(copied)
    assert [repr(value) for value in case.expected] == shown(streamed)
    streamed.validate(full=True)
    copied.validate(full=True)


@each_case
def test_a_column_type_travels_to_executors_and_is_what_spark_expects(lab: Lab, case: Case) -> None:
    column = lab.sample(case).column

    assert pickle.loads(pickle.dumps(column)) == column  # noqa: S301 - our own bytes
    assert column.arrow == to_arrow_type(column.spark, timezone="UTC")


@each_case
def test_slices_nulls_and_nothing_are_read_like_whole_arrays(lab: Lab, case: Case) -> None:
    sample = lab.sample(case)
    column, count = sample.column, len(sample.texts)
    whole = shown(column.from_text(sample.texts))

    for start, end in ((0, 0), (1, count), (count - 1, count), (0, 1)):
        streamed = column.from_text(sample.texts[start:end])
        assert shown(streamed) == whole[start:end]
        assert shown(column.from_snapshot(sample.copied[start:end])) == whole[start:end]
        assert streamed.type == column.arrow


@each_case
def test_nested_types_may_be_left_as_text(lab: Lab, case: Case) -> None:
    sample = lab.sample(case)
    column = column_type(sample.type, TypePolicy(nested="string"))

    copied = column.from_snapshot(sample.copied_flat)

    assert column.spark.typeName() not in ("array", "struct", "map")
    assert shown(copied) == shown(column.from_text(sample.texts))
    if column.spark.typeName() == "string":
        assert copied.to_pylist() == sample.texts.to_pylist()


def test_every_built_in_type_is_stated_and_has_values_in_these_tests(lab: Lab) -> None:
    oids = lab.sql.execute(
        "SELECT oid FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace"
        " AND typtype NOT IN ('p', 'c')"
    ).fetchall()
    types = [lab.pg_type(oid) for (oid,) in oids]
    tested = {_innermost(lab.sample(case).type) for case in CASES}
    # Cannot be stored, or only by PostgreSQL itself.
    internal = {name for rule in RULES for name in rule.names if "internals" in rule.note}

    unstated = {type_.name for type_ in types if not is_stated(type_)}
    untested = {
        type_.name
        for type_ in types
        if type_.kind is Kind.BASE and type_.name not in tested | internal
    }

    assert not unstated
    assert not untested
    assert {name for rule in RULES for name in rule.names} <= {type_.name for type_ in types}


def _innermost(type_: PgType) -> str:
    while type_.inner is not None:
        type_ = type_.inner
    return type_.name


def test_a_users_type_with_a_built_in_name_is_text() -> None:
    column = column_type(PgType(20_000, "int4"), TypePolicy())

    assert column.spark.simpleString() == "string"
