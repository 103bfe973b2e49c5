"""A landing table and its target in fakesnow, in process, for tests of the merge."""

# ruff: noqa: S608 - the names are ours

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import fakesnow.transforms
from fakesnow.cursor import FakeSnowflakeCursor as _Cursor
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


class Hooked:
    """A connection that calls back around each statement; both calls may raise."""

    def __init__(
        self,
        connection: Any,
        before: Callable[[str], None] = lambda _: None,
        after: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._before = before
        self._after = after
        self.statements: list[str] = []

    @contextmanager
    def cursor(self) -> Iterator[Hooked]:
        with self._connection.cursor() as cursor:
            self._cursor = cursor
            yield self

    def execute(self, sql: str, **kwargs: Any) -> Hooked:
        self.statements.append(sql)
        self._before(sql)
        self._cursor.execute(sql, **kwargs)
        self._after(sql)
        return self

    def fetchall(self) -> Any:
        return self._cursor.fetchall()

    @property
    def description(self) -> Any:
        return self._cursor.description


class MergeTables:
    """Both tables, and the connection that a merge runs on."""

    def __init__(self, snow: FakeSnow, columns: dict[str, str], key: Sequence[str]) -> None:
        self.connection: Any = snow.connect(database="DB", schema="S")
        # Of somebody else: what it does is in no transaction of the one above.
        self.other: Any = snow.connect(database="DB", schema="S")
        self._offset = 0
        for table, types in ((TARGET, columns), (LANDING, {**columns, **META_TYPES})):
            body = ", ".join(f"{quote(name)} {type_}" for name, type_ in types.items())
            self.run(f"CREATE OR REPLACE TABLE {table} ({body})")
        self.plan = MergePlan(
            TARGET, LANDING, tuple(key), tuple(MergeColumn(*item) for item in columns.items())
        )

    def close(self) -> None:
        self.connection.close()
        self.other.close()

    def run(self, sql: str) -> list[Any]:
        with self.other.cursor() as cursor:
            rows: list[Any] = cursor.execute(sql).fetchall()
        return rows

    def land(self, rows: Sequence[Change], channel: str = "c0") -> None:
        """Put rows into the landing table, as the service does: past SQL."""
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
            self.other._duck_conn.execute(
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
    execute, execute_one = _Cursor.execute, _Cursor._execute
    known: dict[str, list[Any]] = {}

    def extract_real_comment(expression: Any) -> Any:
        new = extract(expression)
        if new.args.get("table_comment", (None, ""))[1] is None:
            del new.args["table_comment"]
        return new

    def execute_known(cursor: Any, command: str, *args: Any, **kwargs: Any) -> Any:
        if command in known:
            for translated in known[command]:
                execute_one(cursor, translated)
            return cursor
        parts: list[Any] = []

        def execute_new(cursor: Any, translated: Any, params: Any = None) -> None:
            execute_one(cursor, translated, params)
            sql = translated.sql(dialect="duckdb")
            translated.sql = lambda **_: sql
            parts.append(translated)

        with mock.patch.object(_Cursor, "_execute", execute_new):
            execute(cursor, command, *args, **kwargs)
        known[command] = parts
        return cursor

    with (
        mock.patch.object(fakesnow.transforms, "extract_comment_on_table", extract_real_comment),
        mock.patch.object(_Cursor, "execute", execute_known),
    ):
        yield FakeSnow()
