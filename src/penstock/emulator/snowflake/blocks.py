"""Blocks of Snowflake Scripting in the measure that tasks use them; runs in the emulator.

BEGIN, statements one after the other, an optional EXCEPTION WHEN OTHER THEN, END. No variables, no
branches, no loops: those are refused when the block is made, not when it runs.
"""

from __future__ import annotations

import dataclasses
import re

from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType

from penstock.emulator.snowflake.errors import sql_error

_IS_BLOCK = re.compile(
    r"\s*BEGIN\b(?!\s*(?:;|$|TRANSACTION\b|WORK\b|NAME\b)).*\bEND\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_HANDLER = re.compile(r"EXCEPTION\s+WHEN\s+OTHER\s+THEN\b\s*(.*)", re.IGNORECASE | re.DOTALL)
_CONTROL = re.compile(
    r"(LET|DECLARE|IF|FOR|WHILE|REPEAT|LOOP|CASE|RETURN|EXCEPTION|OPEN|FETCH|CALL)\b|.*:=",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """Statements, and those to run when one of them fails."""

    statements: list[str]
    handler: list[str]


def is_block(text: str) -> bool:
    """Tell whether a text is a block, rather than the beginning of a transaction."""
    return _IS_BLOCK.fullmatch(text) is not None


def parse_body(text: str) -> Block:
    """Take a task's body apart: a block, or a single statement."""
    text = text.strip()
    if not is_block(text):
        return Block(split(text), [])
    inner = text.rstrip().rstrip(";").rstrip()[len("BEGIN") : -len("END")]
    statements: list[str] = []
    handler: list[str] | None = None
    for statement in split(inner):
        if match := _HANDLER.fullmatch(statement):
            handler = []
            statement = match[1]  # noqa: PLW2901 - the rest of it
        if _CONTROL.match(statement):
            raise sql_error(
                "the emulator runs plain statements in a block only, without variables, branches "
                f"and loops: {statement[:60]!r}",
                2,
                "0A000",
            )
        if statement:
            (statements if handler is None else handler).append(statement)
    return Block(statements, handler or [])


def split(text: str) -> list[str]:
    """Split statements at semicolons that are not within texts, names or comments."""
    try:
        tokens = Snowflake().tokenize(text)
    except TokenError as exc:
        raise sql_error(f"SQL compilation error: {exc}") from None
    statements = []
    begin = 0
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            statements.append(text[begin : token.start].strip())
            begin = token.end + 1
    statements.append(text[begin:].strip())
    return [statement for statement in statements if statement]
