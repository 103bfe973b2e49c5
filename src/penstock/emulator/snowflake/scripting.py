"""Runs blocks of Snowflake Scripting, statement by statement; runs in the emulator."""

# ruff: noqa: SLF001 - expressions are the user's own; fakesnow's connection is ours

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import snowflake.connector.errors

from penstock.emulator.snowflake.blocks import (
    Assign,
    Block,
    If,
    Raise,
    Sql,
    Step,
    tokens_of,
    word,
)
from penstock.emulator.snowflake.cursor import Cursor, text
from penstock.emulator.snowflake.errors import sql_error


class BlockRun:
    """One run of a block in a session."""

    def __init__(self, cursor: Cursor, run: Callable[[Cursor, str], int], block: Block) -> None:
        self._cursor = cursor
        self._run = run
        self._block = block
        self._values: dict[str, Any] = {"SQLROWCOUNT": None}
        self._error: snowflake.connector.errors.Error | None = None

    def run(self) -> None:
        """Run the block; an exception that it does not handle is the caller's."""
        for name, expression in self._block.variables.items():
            self._values[name] = self._evaluate(expression)
        try:
            self._steps(self._block.steps)
        except snowflake.connector.errors.Error as exc:
            if self._block.handler is None:
                raise
            self._error = exc
            self._steps(self._block.handler)

    def _steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step:
                case Sql():
                    self._sql(step)
                case Assign(name, expression):
                    self._values[name] = self._evaluate(expression)
                case If(condition, then, others):
                    self._steps(then if self._evaluate(condition) else others)
                case Raise(name):
                    raise self._exception(name)

    def _sql(self, step: Sql) -> None:
        self._run(self._cursor, self._filled(step.text, is_sql=True))
        if not step.into:
            self._values["SQLROWCOUNT"] = self._cursor.rowcount
            return
        rows: list[Any] = self._cursor.fetchall()
        if len(rows) != 1 or len(rows[0]) != len(step.into):
            raise sql_error("SELECT INTO needs one row with a value for each variable", 90, "42000")
        self._values.update(zip(step.into, rows[0], strict=True))

    def _evaluate(self, expression: str) -> Any:
        row = self._cursor._duck_conn.execute(
            f"SELECT {self._filled(expression, is_sql=False)}"
        ).fetchone()
        return row[0] if row else None

    def _filled(self, source: str, *, is_sql: bool) -> str:
        """Put values in: of :name in SQL, of names alone in expressions."""
        parts = []
        end = 0
        tokens = tokens_of(source)
        for i, token in enumerate(tokens):
            name = word(token)
            is_bound = i > 0 and tokens[i - 1].text == ":" and tokens[i - 1].end + 1 == token.start
            if name not in self._values or (is_sql and not is_bound):
                continue
            begin = tokens[i - 1].start if is_bound else token.start
            parts += [source[end:begin], _literal(self._values[name])]
            end = token.end + 1
        return "".join([*parts, source[end:]])

    def _exception(self, name: str | None) -> Exception:
        if name is None:
            return self._error or sql_error("RAISE without a name stands in a handler only")
        if name not in self._block.exceptions:
            return sql_error(f"Exception '{name}' is not declared.", 904)
        number, message = self._block.exceptions[name]
        return sql_error(f"Uncaught exception of type '{name}' : {message}", number, "P0001")


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool | int | float | Decimal):
        return str(value)
    return text(str(value))
