"""What was done to a table, from two definitions of it."""

from __future__ import annotations

import pytest

from penstock.postgres.source.alterations import Definition, alterations

A, B, C = (Definition(name, "integer", number) for number, name in enumerate("abc", 1))


def told(before: list[Definition], now: list[Definition]) -> list[str]:
    statements = alterations("s", "t", before, now)
    assert all(text.startswith('ALTER TABLE "s"."t" ') for text in statements)
    return [text.removeprefix('ALTER TABLE "s"."t" ') for text in statements]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ([A, B], []),
        ([A, B, C], ['ADD COLUMN "c" integer']),
        ([A], ['DROP COLUMN "b"']),
        ([A, Definition("x", "integer", 2)], ['RENAME COLUMN "b" TO "x"']),
        # Dropped and added under the same name: another column.
        ([A, Definition("b", "integer", 3)], ['DROP COLUMN "b"', 'ADD COLUMN "b" integer']),
        ([A, Definition("b", "numeric(9,2)", 2)], ['ALTER COLUMN "b" TYPE numeric(9,2)']),
        (
            [A, Definition('x"y', "text", 2)],
            ['RENAME COLUMN "b" TO "x""y"', 'ALTER COLUMN "x""y" TYPE text'],
        ),
    ],
)
def test_numbers_tell_what_was_done(now: list[Definition], expected: list[str]) -> None:
    assert told([A, B], now) == expected


def of_the_wal(*names: str) -> list[Definition]:
    return [Definition(name, "integer") for name in names]


def test_rows_of_the_wal_that_had_a_column_more() -> None:
    assert told(of_the_wal("a", "old", "b"), [A, B]) == ['DROP COLUMN "old"']


def test_rows_of_the_wal_with_another_name_between_two_that_stayed() -> None:
    now = [A, Definition("x", "integer", 4), Definition("c", "integer", 6)]
    assert told(of_the_wal("a", "b", "c"), now) == ['RENAME COLUMN "b" TO "x"']


def test_rows_of_the_wal_with_another_name_at_the_end() -> None:
    renamed = [A, Definition("x", "integer", 2)]
    assert told(of_the_wal("a", "b"), renamed) == ['RENAME COLUMN "b" TO "x"']
    replaced = [A, Definition("x", "integer", 3)]
    assert told(of_the_wal("a", "b"), replaced) == ['DROP COLUMN "b"', 'ADD COLUMN "x" integer']
