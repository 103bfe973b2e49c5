"""Names of Snowflake's objects: read as a user writes them, quoted for statements; pure.

Every statement of this package quotes every name, so any legal name works: with dots, quotes,
blanks, lower case or of any script.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 255
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
_PART = re.compile(r'"(?:[^"]|"")*"|[A-Za-z_][A-Za-z0-9_$]*')


def quote(name: str) -> str:
    """Write a name so that a statement takes it as it is."""
    return '"' + name.replace('"', '""') + '"'


def read_name(text: str) -> str:
    """Read one name as SQL does: without quotes it is upper case, with them as written.

    Raises:
        ValueError: it is no name.
    """
    names = read_names(text)
    if len(names) != 1:
        raise ValueError(f"one name, not {len(names)} with dots between")
    return names[0]


def read_names(text: str) -> tuple[str, ...]:
    """Read names with dots between them: `db.schema.table`, with double quotes where needed.

    Raises:
        ValueError: it is no such name.
    """
    names: list[str] = []
    position = 0
    text = text.strip()
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(
                "a name as SQL has it: letters, digits, _ and $, or anything in double quotes"
            )
        names.append(_unquoted(match.group()))
        position = match.end()
        if position == len(text):
            return tuple(names)
        if text[position] != ".":
            raise ValueError(
                "a name as SQL has it: letters, digits, _ and $, or anything in double quotes"
            )
        position += 1


def _unquoted(part: str) -> str:
    name = part[1:-1].replace('""', '"') if part.startswith('"') else part.upper()
    if not 1 <= len(name) <= _LONGEST or "\0" in name:
        raise ValueError(f"a name of 1 to {_LONGEST} characters")
    return name


def shown(name: str) -> str:
    """Write a name as a user would: with quotes only where SQL needs them."""
    return name if _BARE.fullmatch(name) and name == name.upper() else quote(name)


@dataclass(frozen=True, order=True)
class TableName:
    """Where a table is. Picklable."""

    database: str
    schema: str
    table: str

    @property
    def sql(self) -> str:
        """For statements."""
        return ".".join(map(quote, (self.database, self.schema, self.table)))

    @property
    def schema_sql(self) -> str:
        """Its schema, for statements."""
        return ".".join(map(quote, (self.database, self.schema)))

    def __str__(self) -> str:
        """Write it for people."""
        return ".".join(map(shown, (self.database, self.schema, self.table)))
