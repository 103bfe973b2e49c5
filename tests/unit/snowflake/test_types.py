"""Spark's types as Snowflake's: the table of the docs, and what existing columns take."""

from __future__ import annotations

import pytest
from pyspark.sql import types as spark

from penstock.errors import SchemaError
from penstock.snowflake.types import RULES, SnowType, snow_type, takes, widened

EXAMPLES = {
    "decimal(p,s)": "decimal(20,3)",
    "array": "array<int>",
    "map": "map<string,int>",
    "struct": "struct<a:int>",
    "time(n)": "time(6)",
}


# Built by hand: Spark reads such texts only with a session.
SPARK = [
    *(spark.ByteType(), spark.ShortType(), spark.IntegerType(), spark.LongType()),
    *(spark.FloatType(), spark.DoubleType(), spark.BooleanType(), spark.StringType()),
    *(spark.BinaryType(), spark.DateType(), spark.TimestampType(), spark.TimestampNTZType()),
    *(spark.TimeType(), spark.DayTimeIntervalType(), spark.YearMonthIntervalType()),
    *(spark.VariantType(), spark.NullType(), spark.ArrayType(spark.NullType())),
    *(spark.ArrayType(spark.IntegerType()), spark.ArrayType(spark.DateType())),
    spark.MapType(spark.StringType(), spark.IntegerType()),
    spark.StructType([spark.StructField("a", spark.IntegerType())]),
    *(spark.DecimalType(20, 3), spark.DecimalType(38, 10), spark.DecimalType(10, 2)),
]
BY_NAME = {kind.simpleString(): kind for kind in SPARK}


def type_of(name: str) -> SnowType:
    return snow_type("c", BY_NAME[name])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.spark)
def test_each_line_of_the_docs_is_what_is_created(rule: object) -> None:
    spark, wanted = rule.spark, rule.snowflake  # type: ignore[attr-defined]
    assert str(type_of(EXAMPLES.get(spark, spark))) == wanted.replace("(p,s)", "(20,3)")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("NUMBER(38,0)", SnowType("NUMBER", 38)),
        ("NUMBER(12, 2)", SnowType("NUMBER", 12, 2)),
        ("BIGINT", SnowType("NUMBER", 38)),
        ("VARCHAR(16777216)", SnowType("VARCHAR", 16_777_216)),
        ("TEXT", SnowType("VARCHAR", 16_777_216)),
        ("VARCHAR(20)", SnowType("VARCHAR", 20)),
        ("BINARY(8388608)", SnowType("BINARY", 8_388_608)),
        ("TIMESTAMP_NTZ(9)", SnowType("TIMESTAMP_NTZ")),
        ("DOUBLE PRECISION", SnowType("FLOAT")),
        ("VARIANT", SnowType("VARIANT")),
        ("GEOGRAPHY", SnowType("GEOGRAPHY")),
    ],
)
def test_types_are_read_as_describe_gives_them(text: str, wanted: SnowType) -> None:
    assert SnowType.parse(text) == wanted


@pytest.mark.parametrize(
    ("there", "needed", "wanted"),
    [
        ("NUMBER(38,0)", "bigint", True),
        ("NUMBER(10,0)", "bigint", False),
        ("NUMBER(12,2)", "int", True),
        ("NUMBER(11,2)", "int", False),
        ("NUMBER(38,10)", "decimal(38,10)", True),
        ("NUMBER(38,9)", "decimal(38,10)", False),
        ("FLOAT", "int", False),
        ("FLOAT", "float", True),
        ("VARCHAR(3)", "string", True),
        ("VARIANT", "string", True),
        ("VARIANT", "array<date>", True),
        ("VARIANT", "date", False),
        ("VARIANT", "binary", False),
        ("OBJECT", "map<string,int>", True),
        ("OBJECT", "array<int>", False),
        ("ARRAY", "array<int>", True),
        ("OBJECT", "variant", True),
        ("TIMESTAMP_LTZ(9)", "timestamp", True),
        ("TIMESTAMP_NTZ(9)", "timestamp", False),
        ("TIMESTAMP_TZ(9)", "timestamp_ntz", False),
        ("DATE", "timestamp", False),
        ("VARCHAR", "int", False),
    ],
)
def test_a_column_takes_what_it_can_hold(there: str, needed: str, wanted: bool) -> None:
    assert takes(SnowType.parse(there), type_of(needed)) == wanted


@pytest.mark.parametrize(
    ("there", "needed", "wanted"),
    [
        ("NUMBER(10,0)", "bigint", "NUMBER(19,0)"),
        ("NUMBER(11,2)", "bigint", "NUMBER(21,2)"),
        ("NUMBER(38,37)", "bigint", None),
        ("NUMBER(38,0)", "decimal(10,2)", None),
        ("VARCHAR(3)", "string", "VARCHAR"),
        ("BINARY(3)", "binary", "BINARY"),
        ("DATE", "timestamp", None),
        ("FLOAT", "int", None),
    ],
)
def test_columns_are_widened_where_an_alter_can(there: str, needed: str, wanted: str) -> None:
    wide = widened(SnowType.parse(there), type_of(needed))
    assert (None if wide is None else str(wide)) == wanted


@pytest.mark.parametrize("ddl", ["void", "interval year to month", "array<void>"])
def test_what_snowflake_has_not_is_named_with_a_remedy(ddl: str) -> None:
    with pytest.raises(SchemaError, match=r"'c'.*cast"):
        type_of(ddl)


def test_the_page_of_types_names_every_type_of_both_sides() -> None:
    from penstock.postgres.types.mapping import RULES as POSTGRES
    from penstock.snowflake.types_docs import types_page

    page = types_page()
    assert all(f"| {rule.spark} | {rule.snowflake} |" in page for rule in RULES)
    assert all(f"| {', '.join(rule.names)} | {rule.spark} | " in page for rule in POSTGRES)
