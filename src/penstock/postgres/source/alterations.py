"""Which ALTER TABLE lies between two definitions of a table; pure. For messages.

The WAL does not carry DDL. A column keeps its number in the catalog for life, so two definitions
tell what was done: the same number under another name is a rename, a new number a new column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.postgres.identifiers import quote_identifier


@dataclass(frozen=True, slots=True)
class Definition:
    """A column as DDL has it."""

    name: str
    # As `format_type` writes it.
    type: str
    # pg_attribute.attnum; None where only a row of the WAL tells of the column.
    number: int | None = None


def alterations(
    schema: str, table: str, before: Sequence[Definition], now: Sequence[Definition]
) -> list[str]:
    """Write the statements that lead from one definition to the other.

    Columns without a number are those of rows in the WAL, in the order of the table.
    """
    start = f"ALTER TABLE {quote_identifier(schema)}.{quote_identifier(table)} "
    before = numbered(before, now)
    old = {column.number: column for column in before if column.number is not None}
    new = {column.number: column for column in now if column.number is not None}
    parts = [
        f"DROP COLUMN {quote_identifier(column.name)}"
        for column in before
        if column.number is None or column.number not in new
    ]
    for number, column in new.items():
        name = quote_identifier(column.name)
        was = old.get(number)
        if was is None:
            parts.append(f"ADD COLUMN {name} {column.type}")
            continue
        if was.name != column.name:
            parts.append(f"RENAME COLUMN {quote_identifier(was.name)} TO {name}")
        if was.type != column.type:
            parts.append(f"ALTER COLUMN {name} TYPE {column.type}")
    return [start + part for part in parts]


def numbered(before: Sequence[Definition], now: Sequence[Definition]) -> list[Definition]:
    """Give columns of the WAL the numbers they must have had; None where it cannot be known.

    By name; and where one name took the place of another: a column that was added gets a higher
    number than all that are or were there, so between two that stayed there is only a rename.
    """
    numbers = {column.name: column.number for column in now}
    names = {column.name for column in before}
    found = []
    for index, column in enumerate(before):
        if column.number is None and column.name in numbers:
            column = replace(column, number=numbers[column.name])  # noqa: PLW2901 - as it is known
        elif column.number is None and index < len(now) and now[index].name not in names:
            there = now[index]
            last = now[index - 1].number if index else 0
            is_between = index + 1 < min(len(now), len(before)) and (
                now[index + 1].name == before[index + 1].name
            )
            is_next = there.number is not None and last is not None and there.number == last + 1
            if is_between or is_next:
                column = replace(column, number=there.number)  # noqa: PLW2901 - as it is known
        found.append(column)
    return found
