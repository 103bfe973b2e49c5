"""Avro schemas: compiling a definition; runs in the emulator process, pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from penstock.emulator.pubsub.avro_types import (
    PRIMITIVES,
    Blocks,
    Node,
    Record,
    Scalar,
    Union,
    integer,
    is_byte_text,
)
from penstock.emulator.pubsub.schema_types import (
    MAX_ERROR_CHARS,
    MAX_NESTING,
    NEEDS_EXTRA,
    CompiledSchema,
    MessageMismatchError,
    SchemaDefinitionError,
    SchemaType,
    load_json,
)

_AVRO_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def compile_avro(source: bytes) -> CompiledSchema:
    """Compile an Avro definition."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError as exc:
        raise SchemaDefinitionError(NEEDS_EXTRA) from exc
    raw = _load_avro(source)
    try:
        # Without _force, a definition that claims to be parsed already goes unchecked.
        root = _avro_node(parse_schema(raw, _force=True), {})
    except SchemaDefinitionError:
        raise
    except (SchemaParseException, UnknownType) as exc:
        what = f"unknown type {exc}" if isinstance(exc, UnknownType) else str(exc)
        raise SchemaDefinitionError(f"not an Avro schema: {what[:MAX_ERROR_CHARS]}") from exc
    except KeyError as exc:
        raise SchemaDefinitionError(f"not an Avro schema: a type lacks {exc}") from exc
    except (AttributeError, TypeError, ValueError) as exc:
        raise SchemaDefinitionError("not an Avro schema: an entry of the wrong JSON type") from exc

    def check_binary(data: bytes) -> None:
        if extra := len(data) - root.skip(data, 0, 0):
            raise MessageMismatchError(f"{extra} bytes follow the end of record {root.label}")

    return CompiledSchema(SchemaType.AVRO, lambda value: root.check(value, 0), check_binary)


def _load_avro(source: bytes) -> Any:
    try:
        raw = load_json(source)
    except MessageMismatchError as exc:
        raise SchemaDefinitionError(f"the Avro definition cannot be read: {exc}") from exc
    if not isinstance(raw, dict) or raw.get("type") != "record":
        raise SchemaDefinitionError('the Avro definition must be one object with "type": "record"')
    # fastavro recurses on the C stack, which has no guard of its own.
    level, depth = [raw], 0
    while level:
        depth += 1
        level = [part for value in level for part in _parts(value)]
    if depth > MAX_NESTING:
        raise SchemaDefinitionError(f"the Avro definition is nested deeper than {MAX_NESTING}")
    return raw


def _parts(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _avro_node(schema: Any, names: dict[str, Node]) -> Node:
    if isinstance(schema, list):
        return _avro_union([_avro_node(branch, names) for branch in schema])
    if isinstance(schema, str):
        return PRIMITIVES.get(schema) or names[schema]
    kind = schema["type"]
    if kind in ("array", "map"):
        return Blocks(kind, _avro_node(schema["items" if kind == "array" else "values"], names))
    if kind not in ("record", "error", "enum", "fixed"):
        return PRIMITIVES[kind]
    name = schema["name"]
    if not _AVRO_NAME.fullmatch(name):
        raise SchemaDefinitionError(f"{name!r} is not a valid Avro name")
    if kind == "fixed":
        names[name] = _avro_fixed(name, schema["size"])
    elif kind == "enum":
        symbols = list(schema["symbols"])
        names[name] = integer(name, 0, len(symbols) - 1, lambda v: v in symbols)
    else:
        record = Record(name, {})
        names[name] = record
        for part in schema["fields"]:
            if part["name"] in record.fields or not _AVRO_NAME.fullmatch(part["name"]):
                reason = "given twice or not a valid Avro name"
                raise SchemaDefinitionError(f"field {part['name']!r} of {name}: {reason}")
            record.fields[part["name"]] = _avro_node(part["type"], names)
    return names[name]


def _avro_fixed(name: str, size: object) -> Node:
    if type(size) is not int or size < 0:
        raise SchemaDefinitionError(f"the size of fixed type {name} is not a number of bytes")
    return Scalar(name, lambda _, at: at + size, lambda v: is_byte_text(v) and len(v) == size)


def _avro_union(branches: list[Node]) -> Node:
    by_label = {branch.label: branch for branch in branches}
    label = f"one of {', '.join(by_label)}"
    if len(by_label) < len(branches) or any(isinstance(b, Union) for b in branches):
        raise SchemaDefinitionError(f"a union repeats a type, or contains a union: {label}")
    return Union(label, by_label)
