"""Names in SQL: quoting them, and reading the names and patterns that users write.

Runs everywhere, pure. A name from outside gets into SQL through `quote_identifier` only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import OptionError

# NAMEDATALEN - 1: PostgreSQL cuts longer names off, silently, and so would name another object.
LONGEST_NAME_BYTES = 63

# A part is quoted or plain; `*` and `?` are wildcards in plain ones.
_QUOTED_PART = r'"(?:[^"]|"")+"'
_PLAIN_PART = r'[^\s",.]+'
_PART = rf"(?:{_QUOTED_PART}|{_PLAIN_PART})"
_ITEM = re.compile(rf"\s*({_PART})(?:\.({_PART}))?\s*(,|$)")


def quote_identifier(name: str) -> str:
    """Write a name so that SQL takes it letter for letter.

    Raises:
        OptionError: no object can have this name.
    """
    size = len(name.encode())
    if not name or "\0" in name or size > LONGEST_NAME_BYTES:
        fact = "is empty" if not name else f"has {size} bytes"
        raise OptionError(
            "NAME_INVALID",
            f"The name {name!r}",
            "has a zero byte" if "\0" in name else fact,
            f"PostgreSQL's names have 1 to {LONGEST_NAME_BYTES} bytes; correct it",
        )
    return '"' + name.replace('"', '""') + '"'


def quote_qualified(schema: str, name: str) -> str:
    """Write the name of an object in a schema."""
    return f"{quote_identifier(schema)}.{quote_identifier(name)}"


def quote_literal(text: str) -> str:
    """Write a text as a constant, whatever `standard_conforming_strings` says."""
    if "\0" in text:
        raise ValueError("PostgreSQL's texts have no zero bytes")
    if "\\" in text:
        return " E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class NamePart:
    """A name, or a pattern of names with `*` and `?`."""

    text: str
    is_pattern: bool = False

    def matches(self, name: str) -> bool:
        """Tell whether a name is meant by it."""
        if not self.is_pattern:
            return name == self.text
        # Not fnmatch: `[` has no meaning here.
        wild = {"*": ".*", "?": "."}
        expression = "".join(wild.get(letter, re.escape(letter)) for letter in self.text)
        return re.fullmatch(expression, name, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class TablePattern:
    """Which tables a user means: `public.orders`, `sales.order_?`, `"We ird"."na.me"`."""

    schema: NamePart
    name: NamePart

    @property
    def is_exact(self) -> bool:
        """Whether it names one table."""
        return not (self.schema.is_pattern or self.name.is_pattern)

    def matches(self, schema: str, name: str) -> bool:
        """Tell whether a table is meant by it."""
        return self.schema.matches(schema) and self.name.matches(name)

    def __str__(self) -> str:
        return f"{self.schema.text}.{self.name.text}"


def parse_table_patterns(text: str) -> tuple[TablePattern, ...]:
    """Read one or more names or patterns of tables, separated by commas.

    As in SQL, a plain name is folded to lower case and a quoted one is taken as it is; a name
    without a schema is one of `public`, whatever search_path says.

    Raises:
        OptionError: it is not written like that.
    """
    patterns: list[TablePattern] = []
    position = 0
    while True:
        match = _ITEM.match(text, position)
        if match is None:
            raise OptionError(
                "TABLE_NAME",
                f"The tables {text!r}",
                f"cannot be read from {text[position : position + 40]!r} on",
                'Write schema.table, with quotes where SQL needs them: public.orders, "My S"."a.b"',
            )
        first, second, separator = match.groups()
        parts = (
            [NamePart("public"), _part(first)] if second is None else [_part(first), _part(second)]
        )
        patterns.append(TablePattern(*parts))
        position = match.end()
        if not separator:
            return tuple(patterns)


def _part(written: str) -> NamePart:
    if written.startswith('"'):
        return NamePart(written[1:-1].replace('""', '"'))
    return NamePart(written.lower(), is_pattern="*" in written or "?" in written)
