"""The page of all types, docs/postgres-types.md, from the table in mapping.py. Pure; for tools."""

from __future__ import annotations

from penstock.postgres.types.mapping import RULES
from penstock.postgres.types.policy import SESSION_SETTINGS

_HEAD = """\
# PostgreSQL types in Spark

<!-- Generated from penstock/postgres/types: change it there, then run `make docs`. -->

What `format("postgres_cdc")` makes of each PostgreSQL type. A row of the snapshot and the same row
in the stream have the same types and the same values; tests read each type both ways from a real
server. A null is null in all of them.

## Built-in types

| PostgreSQL | Spark | Notes |
|---|---|---|
"""

_KINDS = """
## Kinds of types

| PostgreSQL | Spark | Notes |
|---|---|---|
| enum | string | The label. |
| domain | as its base type | With the base type's precision. |
| array | array of the element's type | One dimension, unless the column is declared with more \
(`int[][]`). PostgreSQL does not hold rows to the declaration: an array of another number of \
dimensions does not fit, see below. An empty array fits always. The first index (`[0:2]={...}`) is \
not kept. Null elements are. |
| composite | struct of its attributes | A null row and a row of nulls are not the same. Without \
attributes: string. |
| range, multirange | string | As psql shows it: `[1,5)`. |
| hstore | map of string to string | Known by its name, in any schema. |
| any other type of an extension, or your own | string | The text that its output function writes: \
`[1,2,3]` of a vector, hex EWKB of a PostGIS geometry, citext as it is. |

With `nested` = `string`, arrays, composites and hstore are PostgreSQL's text instead, with all
bounds and dimensions.
"""

_MISFITS = """
## Values that do not fit

PostgreSQL has values that Spark's types have not. None of them is changed or dropped in silence;
`outOfRange` says what happens.

| Value | fail (default) | null | clamp |
|---|---|---|---|
| date, timestamp, timestamptz outside the years 1 to 9999: BC, 10000 and later, infinity, \
-infinity | error | NULL | the first or last of that range |
| numeric(p,s): NaN | error | NULL | error |
| numeric without precision as decimal(38,18): NaN, infinity, more than 20 digits before or 18 \
after the point (zeros at the end do not count) | error | NULL | error |
| an array of another number of dimensions than its column | error | NULL | error |

Inside arrays and composites the rule holds for the element or attribute, not for the whole value.
The error names the column and its type, never the value.

`unboundedNumeric` = `decimal` reads numeric without a precision, and numeric with more than 38
digits, as decimal(38,18). Nothing is rounded. The default, `string`, keeps all digits, NaN and
infinity.

## The text of a value

Types that are strings hold what PostgreSQL's output function writes in a session with these
settings. The source sets them in each of its sessions, whatever the defaults of the role, the
database or the server are.

| Setting | Value |
|---|---|
"""

_TAIL = """
`lc_monetary` is left as it is, because a `money` value means what the server's setting says.
A database whose encoding is SQL_ASCII has no known encoding: text in it has to be UTF-8.
"""


def types_page() -> str:
    """Render the page."""
    rules = "".join(f"| {', '.join(rule.names)} | {rule.spark} | {rule.note} |\n" for rule in RULES)
    settings = "".join(
        f"| `{name}` | {f'`{value}`' if value else 'empty'} |\n"
        for name, value in SESSION_SETTINGS.items()
    )
    return _HEAD + rules + _KINDS + _MISFITS + settings + _TAIL
