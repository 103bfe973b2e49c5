"""A landing table and its target in fakesnow, in process, for tests of the merge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import fakesnow.cursor
import fakesnow.transforms
from fakesnow.instance import FakeSnow

from penstock.snowflake.merge import MergeColumn, MergePlan
from penstock.snowflake.merge.work import quote

TARGET = '"DB"."S"."target"'
LANDING = '"DB"."S"."landing"'
META_TYPES = {
    "_op": "VARCHAR",
    "_lsn": "NUMBER(19,0)",
    "_ordinal": "NUMBER(19,0)",
    "_commit_time": "TIMESTAMP_TZ",
    "_xid": "NUMBER(19,0)",
    "_unchanged": "ARRAY",
    "_channel": "VARCHAR",
    "_offset": "NUMBER(38,0)",
}


@dataclass(frozen=True)
class Change:
    """A row of a change stream."""

    op: str
    values: dict[str, Any] = field(default_factory=dict)
    at: tuple[int, int] = (0, 0)
    unchanged: Sequence[str] | None = ()


def changes(
    *steps: tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], list[str]],
) -> list[Change]:
    """Number steps as one transaction each: `("insert", {...})`, `("update", {...}, unchanged)`.

    `move` is a change of key: its values are those of the new row, with the old key in `old`.
    """
    rows: list[Change] = []
    for lsn, step in enumerate(steps, start=1):
        op, values = step[0], dict(step[1])
        unchanged = step[2] if len(step) == 3 else []
        if op == "move":
            rows.append(Change("delete", values.pop("old"), (lsn, 0)))
            rows.append(Change("insert", values, (lsn, 1), unchanged))
        else:
            rows.append(Change(op, values, (lsn, -1 if op == "snapshot" else 0), unchanged))
    return rows


class MergeTables:
    """Both tables, and the connection that a merge runs on."""

    def __init__(self, snow: FakeSnow, columns: dict[str, str], key: Sequence[str]) -> None:
        self.connection: Any = snow.connect(database="DB", schema="S")
        self._offset = 0
        for table, types in ((TARGET, columns), (LANDING, {**columns, **META_TYPES})):
            body = ", ".join(f"{quote(name)} {type_}" for name, type_ in types.items())
            self.run(f"CREATE OR REPLACE TABLE {table} ({body})")
        self.plan = MergePlan(
            TARGET, LANDING, tuple(key), tuple(MergeColumn(*item) for item in columns.items())
        )

    def run(self, sql: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            rows: list[Any] = cursor.execute(sql).fetchall()
        return rows

    def land(self, rows: Sequence[Change], channel: str = "c0") -> None:
        """Put rows into the landing table, as the service does: past SQL."""
        self.connection._duck_conn.execute("USE DB.S")
        for row in rows:
            self._offset += 1
            unchanged = None if row.unchanged is None else json.dumps(list(row.unchanged))
            meta = {
                "_op": row.op,
                "_lsn": row.at[0],
                "_ordinal": row.at[1],
                "_unchanged": unchanged,
                "_channel": channel,
                "_offset": self._offset,
            }
            values = {**row.values, **meta}
            names = ", ".join(map(quote, values))
            marks = ", ".join("?" * len(values))
            self.connection._duck_conn.execute(
                f"INSERT INTO {LANDING} ({names}) VALUES ({marks})", list(values.values())
            )

    def target(self) -> list[tuple[Any, ...]]:
        """All rows of the target, in the order of their text."""
        return sorted(self.run(f"SELECT * FROM {TARGET}"), key=repr)

    def landed_count(self) -> int:
        return int(self.run(f"SELECT COUNT(*) FROM {LANDING}")[0][0])

    def clear(self) -> None:
        self.run(f"DELETE FROM {TARGET}")
        self.run(f"DELETE FROM {LANDING}")


@contextmanager
def mended_fakesnow() -> Iterator[FakeSnow]:
    """Run fakesnow with MERGE inside of a transaction, and with its translations remembered.

    fakesnow records a comment, of nothing, for the temporary table that its MERGE makes, in another
    database; DuckDB refuses that inside of a transaction.
    """
    extract = fakesnow.transforms.extract_comment_on_table
    transform = fakesnow.cursor.FakeSnowflakeCursor._transform
    known: dict[str, Any] = {}

    def extract_real_comment(expression: Any) -> Any:
        new = extract(expression)
        if new.args.get("table_comment", (None, ""))[1] is None:
            del new.args["table_comment"]
        return new

    def transform_once(cursor: Any, expression: Any, params: Any) -> Any:
        sql = expression.sql(dialect="snowflake")
        if sql not in known:
            known[sql] = transform(cursor, expression, params)
        return known[sql].copy()

    with (
        mock.patch.object(fakesnow.transforms, "extract_comment_on_table", extract_real_comment),
        mock.patch.object(fakesnow.cursor.FakeSnowflakeCursor, "_transform", transform_once),
    ):
        yield FakeSnow()
