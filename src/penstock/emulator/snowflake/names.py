"""Names of objects in statements: quoted or not, qualified or not; pure."""

from __future__ import annotations

import re

from fakesnow.conn import FakeSnowflakeConnection

from penstock.emulator.snowflake.errors import sql_error

_PART = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
# For use in larger patterns.
NAME = rf"{_PART}(?:\s*\.\s*{_PART}){{0,2}}"
_PARTS = re.compile(_PART)
ObjectName = tuple[str, str, str]


def unquoted(name: str) -> str:
    """Give an identifier's own text, in upper case if it was not quoted."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.upper()


def resolve(name: str, connection: FakeSnowflakeConnection) -> ObjectName:
    """Give database, schema and name; what is not said is the session's own."""
    parts = [unquoted(part) for part in _PARTS.findall(name)]
    database = parts[-3] if len(parts) > 2 else connection.database
    schema = parts[-2] if len(parts) > 1 else connection.schema
    if not database or not schema:
        raise sql_error(
            "Cannot perform operation. This session does not have a current schema. Call "
            "'USE SCHEMA', or use a qualified name.",
            90106,
            "22000",
        )
    return database, schema, parts[-1]
