"""Pub/Sub's subscription filter language: the parser and its evaluation over a batch.

Runs in the emulator process. Pure: text and Arrow arrays in, a boolean array out. Never
touches messages' payloads and never loops over messages in Python.
Syntax: https://cloud.google.com/pubsub/docs/subscription-message-filter
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MAX_FILTER_BYTES", "FilterSyntaxError", "MessageFilter", "compile_filter"]

# The service's own limit, counted in bytes of UTF-8.
MAX_FILTER_BYTES: Final = 256

# Far above what a person writes; keeps the descent clear of Python's recursion limit.
_MAX_NESTING: Final = 64

_KEYWORDS: Final = frozenset({"AND", "OR", "NOT"})

Mask = npt.NDArray[np.bool_]


class FilterSyntaxError(ValueError):
    """The filter text is not in the language: where (1-based column), what and why."""

    def __init__(self, column: int, found: str, expected: str) -> None:
        """Keep the three parts as arguments, so that the error survives pickling."""
        super().__init__(column, found, expected)
        self.column = column

    def __str__(self) -> str:
        """Return the one-line form shown to users."""
        column, found, expected = self.args
        return f"filter column {column}: found {found}, expected {expected}"


class _Batch:
    """One map array, seen as flat entries plus the row each entry belongs to."""

    def __init__(self, attributes: pa.MapArray[Any, Any]) -> None:
        self.row_count = len(attributes)
        # `offsets` follows a slice while `keys` and `items` are always the whole child.
        offsets = attributes.offsets.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        first, last = (int(offsets[0]), int(offsets[-1])) if self.row_count else (0, 0)
        self._row_ends = offsets[1:] - first
        self._keys = attributes.keys.slice(first, last - first)
        self._items = attributes.items.slice(first, last - first)
        # A null map may still own entries in the child, so it is masked rather than trusted.
        self._present: Mask | None = None
        if attributes.null_count:
            self._present = attributes.is_valid().to_numpy(zero_copy_only=False)
        self._entries: dict[str, npt.NDArray[np.int64]] = {}

    def entries(self, key: str) -> npt.NDArray[np.int64]:
        """Return the flat positions whose key is `key`."""
        if key not in self._entries:
            self._entries[key] = np.flatnonzero(_mask(pc.equal(self._keys, pa.scalar(key))))
        return self._entries[key]

    def values(self, key: str) -> pa.Array[Any]:
        """Return the values at `entries(key)`."""
        return self._items.take(self.entries(key))

    def rows(self, entries: npt.NDArray[np.int64]) -> Mask:
        """Return which rows own at least one of the given flat positions."""
        flags = np.zeros(self.row_count, dtype=np.bool_)
        flags[np.searchsorted(self._row_ends, entries, side="right")] = True
        return flags if self._present is None else flags & self._present


def _mask(array: pa.Array[Any]) -> Mask:
    mask: Mask = np.asarray(pc.fill_null(array, pa.scalar(value=False)), dtype=np.bool_)
    return mask


class _Node(Protocol):
    def evaluate(self, batch: _Batch) -> Mask: ...


@dataclass(frozen=True, slots=True)
class _Condition:
    key: str
    operator: str
    operand: str = ""

    def evaluate(self, batch: _Batch) -> Mask:
        entries = batch.entries(self.key)
        if self.operator == "=":
            entries = entries[_mask(pc.equal(batch.values(self.key), pa.scalar(self.operand)))]
        elif self.operator == "hasPrefix":
            entries = entries[_mask(pc.starts_with(batch.values(self.key), self.operand))]
        return batch.rows(entries)


@dataclass(frozen=True, slots=True)
class _Not:
    operand: _Node

    def evaluate(self, batch: _Batch) -> Mask:
        return ~self.operand.evaluate(batch)


@dataclass(frozen=True, slots=True)
class _Junction:
    operator: str
    operands: tuple[_Node, ...]

    def evaluate(self, batch: _Batch) -> Mask:
        masks = [operand.evaluate(batch) for operand in self.operands]
        joined: Mask = (np.logical_and if self.operator == "AND" else np.logical_or).reduce(masks)
        return joined


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A compiled filter; `text` is the source it was compiled from."""

    text: str
    _root: _Node | None = field(repr=False)

    def matches(self, attributes: pa.MapArray[Any, Any]) -> Mask:
        """Return, for every map of the batch, whether its message passes the filter.

        Args:
            attributes: One map of string to string per message; a null map counts as empty.
        """
        if self._root is None:
            return np.ones(len(attributes), dtype=np.bool_)
        return self._root.evaluate(_Batch(attributes))


def compile_filter(text: str) -> MessageFilter:
    """Compile a filter; the empty text matches every message.

    Raises:
        FilterSyntaxError: The text is too long or not in the filter language.
    """
    return MessageFilter(text, _Parser(_tokens(text)).parse() if text else None)


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


_SPACES: Final = " \t\r\n"
_TOKEN: Final = re.compile(
    r'(?:(?P<word>[A-Za-z_][A-Za-z0-9_-]*)|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<sign>!=|[:.=(),-]))[ \t\r\n]*",
    re.DOTALL,
)


def _tokens(text: str) -> list[_Token]:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as exc:
        raise FilterSyntaxError(exc.start + 1, "half a surrogate pair", "Unicode text") from exc
    if len(encoded) > MAX_FILTER_BYTES:
        column = len(encoded[:MAX_FILTER_BYTES].decode(errors="ignore")) + 1
        found = f"a filter of {len(encoded)} bytes"
        raise FilterSyntaxError(column, found, f"at most {MAX_FILTER_BYTES} bytes")
    tokens: list[_Token] = []
    at = len(text) - len(text.lstrip(_SPACES))
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            expected = "a name, a string in double quotes (closed by one) or an operator"
            raise FilterSyntaxError(at + 1, f"`{text[at]}`", expected)
        kind = str(match.lastgroup)
        tokens.append(_Token(kind, match[kind], at + 1))
        at = match.end()
    return [*tokens, _Token("end", "", len(text) + 1)]


_ESCAPE: Final = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xX]([0-9a-fA-F]{2})|([0-3][0-7]{2})|(.))",
    re.DOTALL,
)
_PLAIN_ESCAPES: Final = dict(zip("\"'\\abfnrtv", "\"'\\\a\b\f\n\r\t\v", strict=True))


def _unquote(token: _Token) -> str:
    def replace(match: re.Match[str]) -> str:
        *digits, plain = match.groups()
        column = token.column + 1 + match.start()
        if plain is not None:
            if plain not in _PLAIN_ESCAPES:
                raise FilterSyntaxError(column, f"`{match[0]}`", "a known escape sequence")
            return _PLAIN_ESCAPES[plain]
        code = int(next(d for d in digits if d), 8 if match[4] else 16)
        if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise FilterSyntaxError(column, f"`{match[0]}`", "the code of a Unicode character")
        return chr(code)

    return _ESCAPE.sub(replace, token.text[1:-1])


class _Parser:
    """Recursive descent: expression -> term {AND term} | term {OR term}."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def parse(self) -> _Node:
        root = self._expression(0)
        if self._next.kind != "end":
            self._fail("AND, OR or the end of the filter")
        return root

    def _expression(self, depth: int) -> _Node:
        if depth > _MAX_NESTING:
            self._fail(f"at most {_MAX_NESTING} levels of parentheses")
        operands = [self._term(depth)]
        operator = self._next.text
        if operator not in ("AND", "OR"):
            return operands[0]
        while self._accept(operator):
            operands.append(self._term(depth))
        # The service gives AND and OR no relative precedence and refuses the mixture.
        if self._next.text in ("AND", "OR"):
            self._fail(f"parentheses where {operator} and {self._next.text} are mixed")
        return _Junction(operator, tuple(operands))

    def _term(self, depth: int) -> _Node:
        negated = self._accept("NOT") or self._accept("-")
        operand = self._operand(depth)
        return _Not(operand) if negated else operand

    def _operand(self, depth: int) -> _Node:
        if self._accept("("):
            inner = self._expression(depth + 1)
            self._expect(")", "AND, OR or `)`")
            return inner
        if self._accept("hasPrefix"):
            for text in ("(", "attributes", "."):
                self._expect(text, f"`{text}` of hasPrefix(attributes.KEY, VALUE)")
            key = self._key()
            self._expect(",", "`,` before the prefix")
            prefix = self._string()
            self._expect(")", "`)` after the prefix")
            return _Condition(key, "hasPrefix", prefix)
        self._expect("attributes", "attributes, hasPrefix, NOT, `-` or `(`")
        if self._accept(":"):
            return _Condition(self._key(), ":")
        self._expect(".", "`:` or `.` after attributes")
        key = self._key()
        if self._accept("!="):
            # True for a message without the key too: to require it, add attributes:KEY AND.
            return _Not(_Condition(key, "=", self._string()))
        self._expect("=", "`=` or `!=` after the key")
        return _Condition(key, "=", self._string())

    def _key(self) -> str:
        token = self._next
        if token.kind == "word" and token.text not in _KEYWORDS:
            self._at += 1
            return token.text
        return self._string("a key (a bare name, or a string in double quotes)")

    def _string(self, expected: str = "a string in double quotes") -> str:
        token = self._next
        if token.kind != "string":
            self._fail(expected)
        self._at += 1
        return _unquote(token)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, text: str) -> bool:
        # The end token has no text and a string keeps its quotes, so text alone identifies.
        found = self._next.text == text
        self._at += found
        return found

    def _expect(self, text: str, expected: str) -> None:
        if not self._accept(text):
            self._fail(expected)

    def _fail(self, expected: str) -> NoReturn:
        token = self._next
        if token.kind == "word" and token.text not in _KEYWORDS and token.text.upper() in _KEYWORDS:
            expected += f" ({token.text.upper()} is written in upper case)"
        found = "the end of the filter" if token.kind == "end" else f"`{token.text}`"
        raise FilterSyntaxError(token.column, found, expected)
