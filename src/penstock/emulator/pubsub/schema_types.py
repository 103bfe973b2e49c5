"""What a topic schema is, whatever its language: types, errors, and reading JSON.

Runs in the emulator process; pure. Never puts a value of a message into an error, nor a name that
only the message knows.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

# One Python frame per level, in definitions and in messages of recursive types.
MAX_NESTING: Final = 200
# An error travels in gRPC metadata, which clients cap at 8 KiB.
MAX_ERROR_CHARS: Final = 1500
NEEDS_EXTRA: Final = "schemas need: pip install 'penstock[emulator]'"


class SchemaType(enum.IntEnum):
    """Language of a definition; the numbers are those of google.pubsub.v1.Schema.Type."""

    PROTOCOL_BUFFER = 1
    AVRO = 2


class Encoding(enum.IntEnum):
    """Form of a topic's messages; the numbers are those of google.pubsub.v1.Encoding."""

    JSON = 1
    BINARY = 2


class SchemaDefinitionError(ValueError):
    """The definition cannot be used as a schema."""


class MessageMismatchError(ValueError):
    """The message does not fit the schema; `path` has the fields, the innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def __str__(self) -> str:
        where = f"field {'.'.join(reversed(self.path))}: " if self.path else ""
        text = where + str(self.args[0])
        cut = len(text) - MAX_ERROR_CHARS
        return text if cut <= 0 else f"...{text[cut:]}"


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A definition ready to check messages with."""

    type: SchemaType
    _check_json: Callable[[Any], None] = field(repr=False)
    _check_binary: Callable[[bytes], None] = field(repr=False)

    def check(self, data: bytes, encoding: Encoding) -> None:
        """Return quietly when `data` fits the schema.

        Raises:
            MessageMismatchError: It does not; the error names the field and the reason.
        """
        if Encoding(encoding) is Encoding.JSON:
            self._check_json(load_json(data))
        else:
            self._check_binary(data)


def load_json(data: bytes) -> Any:
    """Read strict JSON: no names twice, no NaN; fails with MessageMismatchError."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(made := dict(pairs)) != len(pairs):
            raise MessageMismatchError("a JSON object has the same name twice")
        return made

    def refuse(_: str) -> NoReturn:
        raise MessageMismatchError("not valid JSON: NaN and Infinity are not JSON numbers")

    # The causes quote the message, so they are not chained.
    try:
        return json.loads(data.decode(), object_pairs_hook=unique, parse_constant=refuse)
    except UnicodeDecodeError as exc:
        raise MessageMismatchError(f"not UTF-8 text at byte {exc.start}") from None
    except json.JSONDecodeError as exc:
        raise MessageMismatchError(f"not valid JSON at character {exc.pos}") from None
    except MessageMismatchError:
        raise
    except ValueError:
        raise MessageMismatchError("a JSON number has too many digits") from None
    except RecursionError:
        raise MessageMismatchError("the JSON is nested too deeply") from None


def json_kind(value: object) -> str:
    """Name the JSON type of a value, without the value."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return kinds.get(type(value), "null" if value is None else "a number")


def require(kind: type, label: str, value: object) -> None:
    """Refuse a value of another JSON type."""
    if not isinstance(value, kind):
        raise MessageMismatchError(f"expected {label}, found {json_kind(value)}")
