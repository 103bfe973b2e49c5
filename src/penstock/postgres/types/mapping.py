"""Which Spark type each PostgreSQL type has: the one table, from which the docs are made too.

Pure; the driver makes the schema from it, executors read values with what it gives. A type that
is not in the table is a string of its text form. Snapshot and stream use the same entry, so
their types and values are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import types as spark

from penstock.postgres.model import Kind, PgType
from penstock.postgres.types.nested import ArrayReader, CompositeReader, HstoreReader
from penstock.postgres.types.numeric import UNBOUNDED_SHAPE, DecimalReader, decimal_shape
from penstock.postgres.types.policy import TypePolicy
from penstock.postgres.types.reading import Reader, native_sql, output_sql, text_sql
from penstock.postgres.types.scalars import (
    BooleanReader,
    ByteaReader,
    CastReader,
    TextReader,
    UuidReader,
)
from penstock.postgres.types.temporal import TemporalReader

# The first object id that a user's type may have (FirstNormalObjectId).
_FIRST_USER_OID = 16_384


@dataclass(frozen=True)
class ColumnType:
    """The Spark and Arrow type of a column, and how its values are read. Picklable."""

    spark: spark.DataType
    # What a data source must yield for `spark`.
    arrow: pa.DataType
    reader: Reader

    def from_text(self, texts: pa.Array, column: str = "?") -> pa.Array:
        """Convert text as pgoutput sends it.

        Args:
            texts: A string array; the session that made it had SESSION_SETTINGS.
            column: The column as messages should name it.

        Raises:
            RowError: a value has no place in the Spark type and the policy is to fail, or a text
                is not of this type.
        """
        return self.reader.from_text(texts, column)

    def snapshot_sql(self, quoted_column: str) -> str:
        """Give the expression to select from the table in a session with SESSION_SETTINGS."""
        return self.reader.snapshot_sql(quoted_column)

    def from_snapshot(self, values: pa.Array, column: str = "?") -> pa.Array:
        """Convert what ADBC gives for `snapshot_sql`; arguments and errors as in `from_text`."""
        return self.reader.from_snapshot(values, column)


Build = Callable[[PgType, TypePolicy], ColumnType]


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    names: tuple[str, ...]
    # For the documentation.
    spark: str
    note: str
    build: Build


def column_type(type: PgType, policy: TypePolicy) -> ColumnType:  # noqa: A002 - a type is one
    """Give the Spark type of a PostgreSQL type; there is one for every type."""
    if type.oid < _FIRST_USER_OID and type.name in _BY_NAME:
        return _BY_NAME[type.name].build(type, policy)
    if type.kind is Kind.DOMAIN and type.inner is not None:
        return column_type(_with_modifier(type.inner, type.typmod), policy)
    if policy.nested == "typed":
        if type.kind is Kind.ARRAY and type.inner is not None:
            return _array(type, policy)
        if type.kind is Kind.COMPOSITE and type.fields:
            return _composite(type, policy)
        if type.kind is Kind.BASE and type.name == "hstore":
            return _hstore(type)
    return _text(output_sql)(type, policy)


def is_stated(type: PgType) -> bool:  # noqa: A002 - a type is one
    """Say whether a built-in type is in the table by name or by its kind."""
    return type.name in _BY_NAME or type.kind is not Kind.BASE


def _with_modifier(inner: PgType, typmod: int) -> PgType:
    # The modifier of a domain or an array is meant for what is inside: numeric(9,2)[].
    return replace(inner, typmod=typmod) if inner.typmod == -1 else inner


def _text(expression: Callable[[str], str]) -> Build:
    def build(type_: PgType, policy: TypePolicy) -> ColumnType:
        reader = TextReader(type_.name, pa.string(), expression, out_of_range=policy.out_of_range)
        return ColumnType(spark.StringType(), reader.arrow, reader)

    return build


def _plain(
    reader_class: Callable[..., Reader], spark_type: spark.DataType, arrow: pa.DataType
) -> Build:
    def build(type_: PgType, policy: TypePolicy) -> ColumnType:
        reader = reader_class(type_.name, arrow, out_of_range=policy.out_of_range)
        return ColumnType(spark_type, arrow, reader)

    return build


def _unsigned(spark_type: spark.DataType, arrow: pa.DataType) -> Build:
    # ADBC would read these as signed numbers of 32 bits, or as bytes.
    def build(type_: PgType, policy: TypePolicy) -> ColumnType:
        reader = CastReader(type_.name, arrow, text_sql, out_of_range=policy.out_of_range)
        return ColumnType(spark_type, arrow, reader)

    return build


def _numeric(type_: PgType, policy: TypePolicy) -> ColumnType:
    shape = decimal_shape(type_.typmod)
    if shape is None:
        if policy.unbounded_numeric == "string":
            return _text(text_sql)(type_, policy)
        shape = UNBOUNDED_SHAPE
    arrow = pa.decimal128(shape.precision, shape.scale)
    reader = DecimalReader(type_.name, arrow, shape, out_of_range=policy.out_of_range)
    return ColumnType(spark.DecimalType(shape.precision, shape.scale), arrow, reader)


def _array(type_: PgType, policy: TypePolicy) -> ColumnType:
    # An array whose element type is itself an array stands for one more dimension: PostgreSQL has
    # no arrays of arrays, except of domains, and those come quoted like any other element.
    dimensions, inner = 1, _inner(type_)
    while inner.kind is Kind.ARRAY and inner.inner is not None:
        dimensions, inner = dimensions + 1, _inner(inner)
    element = column_type(inner, policy)
    spark_type, arrow = element.spark, element.arrow
    for _ in range(dimensions):
        spark_type = spark.ArrayType(spark_type)
        arrow = pa.list_(pa.field("element", arrow))
    reader = ArrayReader(
        element.reader.label + "[]" * dimensions,
        arrow,
        text_sql if type_.oid < _FIRST_USER_OID else output_sql,
        out_of_range=policy.out_of_range,
        element=element.reader,
        dimensions=dimensions,
        delimiter=type_.delimiter,
    )
    return ColumnType(spark_type, arrow, reader)


def _inner(type_: PgType) -> PgType:
    inner = type_ if type_.inner is None else type_.inner
    return _with_modifier(inner, type_.typmod)


def _composite(type_: PgType, policy: TypePolicy) -> ColumnType:
    attributes = [(name, column_type(inner, policy)) for name, inner in type_.fields]
    arrow = pa.struct([pa.field(name, attribute.arrow) for name, attribute in attributes])
    reader = CompositeReader(
        type_.name,
        arrow,
        out_of_range=policy.out_of_range,
        attributes=tuple(attribute.reader for _, attribute in attributes),
    )
    fields = [spark.StructField(name, attribute.spark) for name, attribute in attributes]
    return ColumnType(spark.StructType(fields), arrow, reader)


def _hstore(type_: PgType) -> ColumnType:
    arrow = pa.map_(pa.string(), pa.string())
    spark_type = spark.MapType(spark.StringType(), spark.StringType())
    return ColumnType(spark_type, arrow, HstoreReader(type_.name, arrow))


_RANGE_NOTE = "Outside the years 1 to 9999, and infinity: see below."

RULES: tuple[Rule, ...] = (
    Rule(("int2",), "smallint", "", _plain(CastReader, spark.ShortType(), pa.int16())),
    Rule(("int4",), "int", "", _plain(CastReader, spark.IntegerType(), pa.int32())),
    Rule(("int8",), "bigint", "", _plain(CastReader, spark.LongType(), pa.int64())),
    Rule(
        ("float4",),
        "float",
        "NaN and infinities are kept.",
        _plain(CastReader, spark.FloatType(), pa.float32()),
    ),
    Rule(
        ("float8",),
        "double",
        "NaN and infinities are kept.",
        _plain(CastReader, spark.DoubleType(), pa.float64()),
    ),
    Rule(
        ("numeric",),
        "decimal(p,s), or string",
        "`decimal(p,s)` for numeric(p,s) where Spark has it: up to 38 digits. A negative scale adds"
        " to the precision, a scale beyond the precision becomes the precision. All others (no"
        " precision, or more digits) are a string of all digits, or decimal(38,18) by option. NaN"
        " in a decimal: see below.",
        _numeric,
    ),
    Rule(
        ("money",),
        "string",
        "As the server's `lc_monetary` writes it: the currency is in no other place.",
        _text(text_sql),
    ),
    Rule(("bool",), "boolean", "", _plain(BooleanReader, spark.BooleanType(), pa.bool_())),
    Rule(("text", "varchar", "name", "refcursor"), "string", "", _text(native_sql)),
    Rule(("bpchar",), "string", "char(n) keeps its blanks at the end.", _text(native_sql)),
    Rule(("char",), "string", 'The one-byte type `"char"`.', _text(output_sql)),
    Rule(("bytea",), "binary", "", _plain(ByteaReader, spark.BinaryType(), pa.binary())),
    Rule(("date",), "date", _RANGE_NOTE, _plain(TemporalReader, spark.DateType(), pa.date32())),
    Rule(
        ("timestamp",),
        "timestamp_ntz",
        _RANGE_NOTE,
        _plain(TemporalReader, spark.TimestampNTZType(), pa.timestamp("us")),
    ),
    Rule(
        ("timestamptz",),
        "timestamp",
        "The same instant. " + _RANGE_NOTE,
        _plain(TemporalReader, spark.TimestampType(), pa.timestamp("us", tz="UTC")),
    ),
    Rule(
        ("time",),
        "string",
        "`12:34:56.789`, also `24:00:00`. Spark's TIME is off by default and has no 24:00.",
        _text(text_sql),
    ),
    Rule(("timetz",), "string", "`12:34:56+02`, with its own offset.", _text(text_sql)),
    Rule(
        ("interval",),
        "string",
        "ISO 8601, `P1Y2M3DT4H5M6S`: Spark's intervals have months or days, never both.",
        _text(text_sql),
    ),
    Rule(
        ("uuid",), "string", "36 characters.", _plain(UuidReader, spark.StringType(), pa.string())
    ),
    Rule(
        ("json", "jsonb"),
        "string",
        "The text, json as it was written. `parse_json` makes a VARIANT of it.",
        _text(native_sql),
    ),
    Rule(("xml", "jsonpath"), "string", "", _text(text_sql)),
    Rule(("inet", "cidr"), "string", "As psql shows it.", _text(output_sql)),
    Rule(("macaddr", "macaddr8"), "string", "", _text(text_sql)),
    Rule(("bit", "varbit"), "string", "A string of 0 and 1.", _text(text_sql)),
    Rule(
        ("point", "line", "lseg", "box", "path", "polygon", "circle"),
        "string",
        "As psql shows it: `(1,2)`.",
        _text(text_sql),
    ),
    Rule(("tsvector", "tsquery"), "string", "", _text(text_sql)),
    Rule(("pg_lsn",), "string", "`16/B374D848`.", _text(text_sql)),
    Rule(("oid", "xid", "cid"), "bigint", "", _unsigned(spark.LongType(), pa.int64())),
    Rule(
        ("xid8",),
        "decimal(20,0)",
        "64 bits without a sign.",
        _unsigned(spark.DecimalType(20, 0), pa.decimal128(20, 0)),
    ),
    Rule(("tid",), "string", "`(block,row)`.", _text(text_sql)),
    Rule(
        (
            "regclass",
            "regcollation",
            "regconfig",
            "regdictionary",
            "regnamespace",
            "regoper",
            "regoperator",
            "regproc",
            "regprocedure",
            "regrole",
            "regtype",
        ),
        "string",
        "The object's name, with its schema unless that is pg_catalog; its number if it was"
        " dropped.",
        _text(text_sql),
    ),
    Rule(("pg_snapshot", "txid_snapshot"), "string", "`10:20:10,14,15`.", _text(text_sql)),
    Rule(("int2vector", "oidvector"), "string", "Numbers with blanks between.", _text(text_sql)),
    Rule(
        (
            "aclitem",
            "gtsvector",
            "pg_brin_bloom_summary",
            "pg_brin_minmax_multi_summary",
            "pg_dependencies",
            "pg_mcv_list",
            "pg_ndistinct",
            "pg_node_tree",
        ),
        "string",
        "PostgreSQL's internals.",
        _text(text_sql),
    ),
)

_BY_NAME = {name: rule for rule in RULES for name in rule.names}
