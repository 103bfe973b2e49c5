"""The choices a user has about types, and the session in which the text forms hold. Pure.

Runs everywhere. Snapshot and stream read with the same policy in sessions with the same settings,
or the same row would have two values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args, get_type_hints

from penstock.errors import OptionError

# Everything that PostgreSQL's output functions look at, apart from lc_monetary (see `money` in
# mapping.py). A role or a database may have its own defaults for each of these, so every session
# that peeks at a slot or reads a snapshot sets them.
SESSION_SETTINGS: Final[dict[str, str]] = {
    # Text inside pgoutput messages is converted to the client's encoding.
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    # The shortest digits that give the same float again.
    "extra_float_digits": "1",
    "bytea_output": "hex",
    # Names of relations, functions and types (regclass and its family) are then always qualified
    # unless they are PostgreSQL's own. It also keeps planted functions out of our statements.
    "search_path": "",
    "quote_all_identifiers": "off",
}


def session_sql() -> str:
    """Give the statement that brings a session to SESSION_SETTINGS."""
    calls = (
        f"pg_catalog.set_config('{name}', '{value}', false)"
        for name, value in SESSION_SETTINGS.items()
    )
    return f"SELECT {', '.join(calls)}"


OutOfRange = Literal["fail", "null", "clamp"]
UnboundedNumeric = Literal["string", "decimal"]
Nested = Literal["typed", "string"]


@dataclass(frozen=True, kw_only=True)
class TypePolicy:
    """What to do where PostgreSQL has values or types that Spark has not. Picklable."""

    # A value that the column's Spark type cannot hold: a date or timestamp outside the years 1 to
    # 9999 (also +-infinity), NaN or too many digits in a decimal, an array of another number of
    # dimensions.
    #   fail   the query stops with an error that names the column
    #   null   the value becomes NULL
    #   clamp  a date or timestamp becomes the first or last that Spark has; the others fail
    out_of_range: OutOfRange = "fail"
    # numeric without a precision, or with one that Spark's decimal does not have.
    #   string   all digits, as PostgreSQL writes them
    #   decimal  decimal(38,18); what does not fit follows out_of_range, nothing is rounded
    unbounded_numeric: UnboundedNumeric = "string"
    # Arrays, composites and hstore.
    #   typed   array, struct, map
    #   string  PostgreSQL's text form, with array bounds and all dimensions
    nested: Nested = "typed"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            allowed = get_args(hints[field.name])
            if getattr(self, field.name) not in allowed:
                raise OptionError(
                    "OPTION_INVALID",
                    f"TypePolicy.{field.name}",
                    f"the value {getattr(self, field.name)!r} is not known",
                    f"Use one of {', '.join(allowed)}",
                )
