"""The page docs/snowflake-types.md, written from the rules that the code follows."""

from __future__ import annotations

from penstock.postgres.types.mapping import RULES as POSTGRES_RULES
from penstock.snowflake.types import RULES

_HEAD = """# Spark types in Snowflake

<!-- Generated from penstock/snowflake/types.py: change it there, then run `make docs`. -->

What `format("snowpipe")` makes of each Spark type. "Created as" is the type that `createTable` and
`evolveSchema` use; "also takes" are other types that a column of your table may have. Any other
pair is an error before the first row is sent, which names the column, both types and the remedy.

| Spark | Created as | Sent as | Also takes | Notes |
|---|---|---|---|---|
"""

_VALUES = """
Other types (`void`, `interval year to month`, user-defined types) are an error: cast them.

## Values that do not fit

No value becomes NULL in silence.

| Value | Default | Other answers |
|---|---|---|
| NaN, Infinity, -Infinity in float and double | kept: FLOAT has them | `onNonFinite` = `refuse`, \
`null` |
| the same inside arrays, maps and structs | the texts `NaN`, `inf`, `-inf`: JSON has no such \
numbers | `onNonFinite` = `refuse`, `null` |
| date or timestamp outside the years 1 to 9999, also inside | does not fit | `onOutOfRange` = \
`null`, `clamp` |
| NULL in a NOT NULL column | does not fit | - |
| text longer than VARCHAR(n), binary longer than BINARY(n) | does not fit | `evolveSchema` \
lengthens the column |
| number with more digits than the column | an error at the start, by type | `evolveSchema` raises \
the digits |
| text in `jsonColumns` that is no JSON | does not fit | - |

A row with a value that does not fit ends the query with the column and the row's position, or goes
to the dead-letter table: option `onRefusedRows`.

A NULL of an ARRAY, OBJECT or VARIANT column is an SQL NULL. A Spark variant that holds a JSON null
stays a JSON null.

## From PostgreSQL to Snowflake

What `postgres_cdc` reads arrives as:

| PostgreSQL | Spark | Snowflake |
|---|---|---|
"""

_KINDS = """| array | array | ARRAY |
| composite | struct | OBJECT |
| hstore | map of string to string | OBJECT |
| enum, domain of text, range, types of extensions | string | VARCHAR |

json and jsonb are strings in Spark: name them in `jsonColumns` to have VARIANT, otherwise they are
VARCHAR. A numeric without precision, or with more than 38 digits, is a string with all its digits:
VARCHAR.
"""

_SNOWFLAKE = {
    "smallint": "NUMBER(5,0)",
    "int": "NUMBER(10,0)",
    "bigint": "NUMBER(19,0)",
    "float": "FLOAT",
    "double": "FLOAT",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "timestamp": "TIMESTAMP_TZ",
    "decimal(20,0)": "NUMBER(20,0)",
    "decimal(p,s), or string": "NUMBER(p,s), or VARCHAR",
}


def types_page() -> str:
    """Render the page."""
    rules = "".join(
        f"| {rule.spark} | {rule.snowflake} | {rule.sent} | {rule.also} | {rule.note} |\n"
        for rule in RULES
    )
    postgres = "".join(
        f"| {', '.join(rule.names)} | {rule.spark} | {_SNOWFLAKE[rule.spark]} |\n"
        for rule in POSTGRES_RULES
    )
    return _HEAD + rules + _VALUES + postgres + _KINDS
