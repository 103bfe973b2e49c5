"""Blocks of Snowflake Scripting in the measure that tasks use them; runs in the emulator.

    DECLARE name EXCEPTION (number, 'text'); name INTEGER DEFAULT 0;
    BEGIN statement; SELECT ... INTO :name FROM ...; name := expression;
          IF (condition) THEN ...; ELSE ...; END IF; RAISE name;
    EXCEPTION WHEN OTHER THEN ...; RAISE;
    END

Anything else (loops, cursors, LET, nested blocks) is refused when the block is made, not when it
runs.
"""

from __future__ import annotations

import dataclasses
import re

from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.emulator.snowflake.errors import sql_error

_IS_BLOCK = re.compile(
    r"\s*(DECLARE\b|BEGIN\b(?!\s*(?:;|$|TRANSACTION\b|WORK\b|NAME\b))).*\bEND\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_REFUSED = ("LET", "FOR", "WHILE", "REPEAT", "LOOP", "CASE", "RETURN", "OPEN", "FETCH", "CLOSE")
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)


@dataclasses.dataclass(frozen=True)
class Sql:
    """A statement of SQL; its one row goes into variables, if there are some."""

    text: str
    into: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Assign:
    """name := expression."""

    name: str
    expression: str


@dataclasses.dataclass(frozen=True)
class Raise:
    """RAISE, of a declared exception or (in a handler) of the one that came."""

    name: str | None


@dataclasses.dataclass(frozen=True)
class If:
    """IF (condition) THEN steps ELSE others END IF."""

    condition: str
    steps: tuple[Step, ...]
    others: tuple[Step, ...]


Step = Sql | Assign | Raise | If


@dataclasses.dataclass(frozen=True)
class Block:
    """A block, taken apart; `handler` is None if it has none."""

    steps: tuple[Step, ...]
    handler: tuple[Step, ...] | None = None
    # By name: their first values, and numbers and texts of exceptions.
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    exceptions: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)


def is_block(text: str) -> bool:
    """Tell whether a text is a block, rather than the beginning of a transaction."""
    return _IS_BLOCK.fullmatch(text) is not None


def parse_body(text: str) -> Block:
    """Take a task's body apart: a block, or a single statement."""
    text = text.strip()
    if not is_block(text):
        if re.match(r"(BEGIN|DECLARE)\b", text, re.IGNORECASE):
            raise sql_error("syntax error: the block has no end")
        return Block((Sql(text.rstrip(";").rstrip()),))
    return _Parser(text).block()


def tokens_of(text: str) -> list[Token]:
    """Split a text into tokens."""
    try:
        return list(Snowflake().tokenize(text))
    except TokenError as exc:
        raise sql_error(f"SQL compilation error: {exc}") from None


def word(token: Token) -> str:
    """Give a token's text in upper case; empty for texts and quoted names."""
    return "" if token.token_type in _QUOTED else token.text.upper()


class _Parser:
    """Reads a block from its tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._at = 0

    def block(self) -> Block:
        variables: dict[str, str] = {}
        exceptions: dict[str, tuple[int, str]] = {}
        if self._is("DECLARE"):
            self._take("DECLARE")
            while not self._is("BEGIN"):
                self._declaration(variables, exceptions)
        self._take("BEGIN")
        steps = self._steps("END", "EXCEPTION")
        handler = None
        if self._is("EXCEPTION"):
            for expected in ("EXCEPTION", "WHEN", "OTHER", "THEN"):
                self._take(expected)
            handler = self._steps("END")
        self._take("END")
        if [token.text for token in self._tokens[self._at :]] not in ([], [";"]):
            raise self._unknown()
        return Block(steps, handler, variables, exceptions)

    def _declaration(
        self, variables: dict[str, str], exceptions: dict[str, tuple[int, str]]
    ) -> None:
        tokens = self._until(";")
        name = word(tokens[0])
        if word(tokens[1]) == "EXCEPTION":
            text = next(t.text for t in tokens if t.token_type == TokenType.STRING)
            digits = next(t.text for t in tokens if t.token_type == TokenType.NUMBER)
            exceptions[name] = (-int(digits), text)
            return
        values = [i for i, token in enumerate(tokens) if word(token) in ("DEFAULT", ":=")]
        variables[name] = self._slice(tokens[values[0] + 1 :]) if values else "NULL"

    def _steps(self, *ends: str) -> tuple[Step, ...]:
        steps = []
        while not self._is(*ends):
            steps.append(self._step())
        return tuple(steps)

    def _step(self) -> Step:
        if self._is(*_REFUSED):
            raise self._unknown()
        if self._is("RAISE"):
            tokens = self._until(";")
            return Raise(word(tokens[1]) if len(tokens) > 1 else None)
        if self._is("IF"):
            return self._if()
        following = self._tokens[self._at + 1 : self._at + 2]
        if following and following[0].text == ":=":
            tokens = self._until(";")
            return Assign(word(tokens[0]), self._slice(tokens[2:]))
        if (
            self._is("BEGIN")
            and following
            and word(following[0]) not in ("TRANSACTION", "WORK", ";")
        ):
            raise self._unknown()
        return self._sql(self._until(";"))

    def _if(self) -> If:
        self._take("IF")
        condition = self._slice(self._until("THEN"))
        steps = self._steps("END", "ELSE")
        others: tuple[Step, ...] = ()
        if self._is("ELSE"):
            self._take("ELSE")
            others = self._steps("END")
        for expected in ("END", "IF", ";"):
            self._take(expected)
        return If(condition, steps, others)

    def _sql(self, tokens: list[Token]) -> Sql:
        for i, token in enumerate(tokens[:-1]):
            if word(token) == "INTO" and tokens[i + 1].text == ":":
                end = i + 1
                names = []
                while tokens[end].text == ":":
                    names.append(word(tokens[end + 1]))
                    end += 3 if end + 2 < len(tokens) and tokens[end + 2].text == "," else 2
                    if end >= len(tokens):
                        break
                text = f"{self._slice(tokens[:i])} {self._slice(tokens[end:])}"
                return Sql(text.strip(), tuple(names))
        return Sql(self._slice(tokens))

    def _is(self, *words: str) -> bool:
        if self._at >= len(self._tokens):
            raise sql_error("syntax error: the block has no end")
        return word(self._tokens[self._at]) in words

    def _take(self, expected: str) -> None:
        if not self._is(expected):
            raise self._unknown()
        self._at += 1

    def _until(self, end: str) -> list[Token]:
        begin = self._at
        while not self._is(end):
            self._at += 1
        self._at += 1
        tokens = self._tokens[begin : self._at - 1]
        if not tokens:
            raise self._unknown()
        return tokens

    def _slice(self, tokens: list[Token]) -> str:
        return self._text[tokens[0].start : tokens[-1].end + 1] if tokens else ""

    def _unknown(self) -> Exception:
        near = self._text[self._tokens[min(self._at, len(self._tokens) - 1)].start :][:60]
        return sql_error(
            f"the emulator knows only a part of Snowflake Scripting, and not this: {near!r}",
            2,
            "0A000",
        )
