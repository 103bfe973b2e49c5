"""How one JSON value becomes a value of a column, as DuckDB expressions; runs in the emulator.

Each column gives the type to read the value as, an expression that casts it (null where it does not
fit), and an expression that says why a value does not fit.
"""

from __future__ import annotations

import dataclasses
import re

from penstock.emulator.snowflake.database import quoted

_TYPE = re.compile(r"([A-Z_ ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_LONGEST = {"VARCHAR": 16_777_216, "BINARY": 8_388_608}
_SEMI_STRUCTURED = ("VARIANT", "ARRAY", "OBJECT")
_IN_RANGE = {
    "DATE": "DATE",
    "TIMESTAMP_NTZ": "TIMESTAMP",
    "TIMESTAMP_LTZ": "TIMESTAMPTZ",
    "TIMESTAMP_TZ": "TIMESTAMPTZ",
}
_CASTS = {
    "FLOAT": "TRY_CAST({raw} AS DOUBLE)",
    "BOOLEAN": (
        "CASE WHEN lower({raw}) IN ('on', 'off') THEN lower({raw}) = 'on' "
        "ELSE TRY_CAST({raw} AS BOOLEAN) END"
    ),
    "VARCHAR": "CASE WHEN length({raw}) <= {longest} THEN {raw} END",
    "BINARY": (
        "CASE WHEN length({raw}) % 2 = 0 AND length({raw}) <= 2 * {longest} "
        "THEN TRY(unhex({raw})) END"
    ),
    # DuckDB has a time of 24:00:00, Snowflake has not.
    "TIME": "CASE WHEN {raw} NOT LIKE '24%' THEN TRY_CAST({raw} AS TIME) END",
    "OBJECT": "CASE WHEN json_type({raw}) = 'OBJECT' THEN {raw} END",
    "ARRAY": "CASE WHEN json_type({raw}) = 'ARRAY' THEN {raw} "
    "WHEN {raw} IS NOT NULL THEN json_array({raw}) END",
}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a target table; `type` as DESCRIBE TABLE shows it."""

    name: str
    type: str
    is_nullable: bool

    @property
    def _parts(self) -> tuple[str, int | None, int | None]:
        match = _TYPE.fullmatch(self.type)
        if match is None:
            return self.type, None, None
        kind, first, second = match.groups()
        return kind, int(first) if first else None, int(second) if second else None

    @property
    def read_as(self) -> str:
        """Give the DuckDB type that read_json shall give the value."""
        # As JSON a number keeps all its digits; as text it would pass through a double.
        kind = self._parts[0]
        return "JSON" if kind == "NUMBER" or kind in _SEMI_STRUCTURED else "VARCHAR"

    def cast(self, raw: str) -> str:
        """Give the expression of the value, null if it does not fit; `raw` is what was read."""
        kind, first, second = self._parts
        if kind in _IN_RANGE:
            # Years of the service; also keeps DuckDB's infinity out.
            name = _IN_RANGE[kind]
            value = f"TRY_CAST({raw} AS {name})"
            return (
                f"CASE WHEN {value} >= {name} '0001-01-01' AND {value} < {name} '10000-01-01' "
                f"THEN {value} END"
            )
        if kind == "NUMBER":
            type_ = f"DECIMAL({first or 38},{second or 0})"
            return f"TRY_CAST(trim({raw}::VARCHAR, '\"') AS {type_})"
        longest = first or _LONGEST.get(kind, 0)
        return _CASTS.get(kind, "{raw}").format(raw=raw, longest=longest)

    def reason(self, raw: str, value: str) -> str:
        """Give the expression of the message about a value that does not fit, null if it fits."""
        kind, first, _ = self._parts
        shown = f"left(trim({raw}::VARCHAR, '\"'), 100)"
        where = f" in column {quoted(self.name)}".replace("'", "''")
        what = {
            "NUMBER": "Numeric value '' || {} || '' is not recognized or out of range",
            "FLOAT": "Numeric value '' || {} || '' is not recognized",
            "BOOLEAN": "Boolean value '' || {} || '' is not recognized",
            "VARCHAR": f"User character length limit ({first}) exceeded by string '' || {{}} || ''",
            "BINARY": "The following string is not a legal hex-encoded value: '' || {} || ''",
            "DATE": "Date '' || {} || '' is not recognized",
            "TIME": "Time '' || {} || '' is not recognized",
            "OBJECT": "Failed to cast variant value '' || {} || '' to OBJECT",
        }.get(kind, "Timestamp '' || {} || '' is not recognized")
        # Two quotes within a literal are one in its value; around the shown text they end it.
        text = "'" + what.replace("'' || {} || ''", f"''' || {shown} || '''") + where + "'"
        clauses = [f"WHEN {raw} IS NOT NULL AND {value} IS NULL THEN {text}"]
        if not self.is_nullable:
            clauses.append(
                f"WHEN {value} IS NULL THEN 'NULL result in a non-nullable column{where}'"
            )
        return f"CASE {' '.join(clauses)} END"

    def misfit(self, raw: str, value: str) -> str:
        """Give the condition that the value does not fit."""
        if self.is_nullable:
            return f"({raw} IS NOT NULL AND {value} IS NULL)"
        return f"({value} IS NULL)"


def from_duckdb(data_type: str) -> str:
    """Name the Snowflake type of a DuckDB type, for columns that were not declared to us."""
    if data_type.startswith("DECIMAL("):
        return "NUMBER" + data_type.removeprefix("DECIMAL")
    return {
        "TINYINT": "NUMBER(38,0)",
        "SMALLINT": "NUMBER(38,0)",
        "INTEGER": "NUMBER(38,0)",
        "BIGINT": "NUMBER(38,0)",
        "HUGEINT": "NUMBER(38,0)",
        "UBIGINT": "NUMBER(38,0)",
        "FLOAT": "FLOAT",
        "DOUBLE": "FLOAT",
        "VARCHAR": f"VARCHAR({_LONGEST['VARCHAR']})",
        "BLOB": f"BINARY({_LONGEST['BINARY']})",
        "TIME": "TIME(9)",
        "TIMESTAMP": "TIMESTAMP_NTZ(9)",
        "TIMESTAMP_NS": "TIMESTAMP_NTZ(9)",
        "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_TZ(9)",
        "JSON": "VARIANT",
    }.get(data_type, data_type)
