"""Spark's types as Snowflake's, and whether a column that is there takes them; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import types as spark

from penstock.errors import SchemaError

# Snowflake's own bounds for a column without one of the user's.
LONGEST_TEXT = 16_777_216
LONGEST_BINARY = 8_388_608
MOST_DIGITS = 38

_FORM = re.compile(r"\s*([A-Z_ ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*", re.IGNORECASE)
# Other words for the same types; DESCRIBE mostly gives the first ones.
_SYNONYMS = {
    "DECIMAL": "NUMBER", "NUMERIC": "NUMBER", "INT": "NUMBER", "INTEGER": "NUMBER",
    "BIGINT": "NUMBER", "SMALLINT": "NUMBER", "TINYINT": "NUMBER", "BYTEINT": "NUMBER",
    "TEXT": "VARCHAR", "STRING": "VARCHAR", "CHAR": "VARCHAR", "CHARACTER": "VARCHAR",
    "NVARCHAR": "VARCHAR", "DOUBLE": "FLOAT", "DOUBLE PRECISION": "FLOAT", "REAL": "FLOAT",
    "FLOAT4": "FLOAT", "FLOAT8": "FLOAT", "VARBINARY": "BINARY", "DATETIME": "TIMESTAMP_NTZ",
    "TIMESTAMP": "TIMESTAMP_NTZ", "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ", "TIMESTAMPTZ": "TIMESTAMP_TZ",
}  # fmt: skip


@dataclass(frozen=True)
class SnowType:
    """A type of a column. Picklable."""

    name: str
    # Digits of a NUMBER, characters of a VARCHAR, bytes of a BINARY; None is Snowflake's default.
    size: int | None = None
    scale: int = 0

    def __str__(self) -> str:
        """Write it as SQL does."""
        if self.name == "NUMBER":
            return f"NUMBER({self.size or MOST_DIGITS},{self.scale})"
        bounds = {"VARCHAR": LONGEST_TEXT, "BINARY": LONGEST_BINARY}
        if self.name in bounds and self.size not in (None, bounds[self.name]):
            return f"{self.name}({self.size})"
        return self.name

    @classmethod
    def parse(cls, text: str) -> SnowType:
        """Read a type as DESCRIBE gives it."""
        match = _FORM.fullmatch(text)
        if match is None:
            return cls(text.upper())
        name = " ".join(match[1].upper().split())
        name = _SYNONYMS.get(name, name)
        if name == "NUMBER":
            return cls(name, int(match[2] or MOST_DIGITS), int(match[3] or 0))
        if name in ("VARCHAR", "BINARY"):
            default = LONGEST_TEXT if name == "VARCHAR" else LONGEST_BINARY
            return cls(name, int(match[2] or default))
        return cls(name)


VARIANT = SnowType("VARIANT")


@dataclass(frozen=True)
class Rule:
    """One line of the table of types."""

    spark: str
    snowflake: str
    sent: str
    also: str
    note: str = ""


# What `snow_type` and `takes` do, in words: docs/snowflake-types.md is made of it, and a test holds
# the two together.
RULES = (
    Rule("tinyint", "NUMBER(3,0)", "number", "wider NUMBER, VARIANT"),
    Rule("smallint", "NUMBER(5,0)", "number", "wider NUMBER, VARIANT"),
    Rule("int", "NUMBER(10,0)", "number", "wider NUMBER, VARIANT"),
    Rule("bigint", "NUMBER(19,0)", "number", "wider NUMBER, VARIANT"),
    Rule(
        "decimal(p,s)", "NUMBER(p,s)", "text of all digits", "NUMBER with room for both, VARIANT",
        "Exact. In VARIANT it is a number.",
    ),
    Rule(
        "float", "FLOAT", "number", "VARIANT",
        "The same number as a double: 0.1 becomes 0.10000000149011612. NaN and infinities: below.",
    ),
    Rule("double", "FLOAT", "number", "VARIANT", "NaN and infinities: below."),
    Rule("boolean", "BOOLEAN", "true, false", "VARIANT"),
    Rule(
        "string", "VARCHAR", "text", "VARCHAR(n), VARIANT",
        "In a VARIANT it is a text; with `jsonColumns` it is parsed.",
    ),
    Rule("binary", "BINARY", "hex", "BINARY(n)"),
    Rule("date", "DATE", "2024-12-31", "-", "Years 1 to 9999; others: below."),
    Rule(
        "timestamp_ntz", "TIMESTAMP_NTZ", "2024-12-31 23:59:59.123456", "-",
        "Microseconds are kept. Years 1 to 9999; others: below.",
    ),
    Rule(
        "timestamp", "TIMESTAMP_TZ", "2024-12-31 23:59:59.123456+00:00", "TIMESTAMP_LTZ",
        "The same instant, with offset 0: the session that reads it does not change what it sees. "
        "Years 1 to 9999; others: below.",
    ),
    Rule("time(n)", "TIME", "12:34:56.123456", "-", "Where Spark has it."),
    Rule(
        "interval day to second", "VARCHAR", "PT93784.500000S", "-",
        "ISO 8601, in seconds.",
    ),
    Rule("array", "ARRAY", "JSON", "VARIANT", "Of any type of this table. Nulls are kept."),
    Rule(
        "map", "OBJECT", "JSON", "VARIANT",
        "Keys become texts.",
    ),
    Rule("struct", "OBJECT", "JSON", "VARIANT", "A null field is a JSON null."),
    Rule(
        "variant", "VARIANT", "JSON", "OBJECT, ARRAY",
        "Row by row, in Python: the one type that is slow.",
    ),
)  # fmt: skip

_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_PLAIN = {
    "float": "FLOAT",
    "double": "FLOAT",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "timestamp": "TIMESTAMP_TZ",
    "variant": "VARIANT",
}
# Families that a VARIANT takes as what they are; a date in JSON would only be a text.
_IN_VARIANT = {"NUMBER", "FLOAT", "BOOLEAN", "VARCHAR", "ARRAY", "OBJECT", "VARIANT"}


def snow_type(column: str, kind: spark.DataType) -> SnowType:  # noqa: C901, PLR0911 - a table
    """Give the type that a column of this Spark type is created with.

    Raises:
        SchemaError: Snowflake has nothing for it.
    """
    name = kind.simpleString()
    if name in _INTEGERS:
        return SnowType("NUMBER", _INTEGERS[name])
    if isinstance(kind, spark.DecimalType):
        return SnowType("NUMBER", kind.precision, kind.scale)
    if name in _PLAIN:
        return SnowType(_PLAIN[name])
    if isinstance(kind, spark.CharType | spark.VarcharType):
        return SnowType("VARCHAR", kind.length)
    if isinstance(kind, spark.StringType):
        return SnowType("VARCHAR", LONGEST_TEXT)
    if isinstance(kind, spark.BinaryType):
        return SnowType("BINARY", LONGEST_BINARY)
    if isinstance(kind, spark.DayTimeIntervalType):
        return SnowType("VARCHAR", LONGEST_TEXT)
    if name.startswith("time("):
        return SnowType("TIME")
    if isinstance(kind, spark.ArrayType):
        snow_type(column, kind.elementType)
        return SnowType("ARRAY")
    if isinstance(kind, spark.MapType):
        snow_type(column, kind.keyType)
        snow_type(column, kind.valueType)
        return SnowType("OBJECT")
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            snow_type(column, field.dataType)
        return SnowType("OBJECT")
    raise SchemaError(
        "COLUMN_TYPE",
        f"Column '{column}'",
        f"its type {name} has no counterpart in Snowflake",
        f"Cast it, for example: cast(`{column}` as string)",
    )


def takes(there: SnowType, needed: SnowType) -> bool:
    """Tell whether a column of the table takes every value of a DataFrame's column.

    Texts and binaries are exempt: a bound on their length is checked value by value.
    """
    if there.name == "VARIANT":
        return needed.name in _IN_VARIANT
    if needed.name == "VARIANT":
        return there.name in ("OBJECT", "ARRAY")
    if needed.name == "TIMESTAMP_TZ":
        return there.name in ("TIMESTAMP_TZ", "TIMESTAMP_LTZ")
    if needed.name == there.name == "NUMBER":
        return (
            there.scale >= needed.scale
            and (there.size or MOST_DIGITS) - there.scale >= (needed.size or 0) - needed.scale
        )
    return there.name == needed.name


def widened(there: SnowType, needed: SnowType) -> SnowType | None:
    """Give the type to alter a column to so that it takes all values; None if no ALTER can.

    Snowflake raises the digits of a NUMBER, not its scale, and lengthens texts and binaries.
    """
    if there.name != needed.name or there.size is None or needed.size is None:
        return None
    if there.name == "NUMBER":
        digits = needed.size - needed.scale + there.scale
        if there.scale < needed.scale or digits > MOST_DIGITS:
            return None
        return SnowType("NUMBER", digits, there.scale)
    if there.name in ("VARCHAR", "BINARY"):
        return SnowType(there.name, needed.size)
    return None
