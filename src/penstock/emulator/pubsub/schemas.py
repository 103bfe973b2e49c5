"""Topic schemas: compiling a definition, and checking a message against it.

Runs in the emulator process; protoc runs in a process of its own, in a temporary directory.
Checks walk the encoded bytes and keep nothing, so a message cannot make them allocate: an
Avro decoder that builds the value exhausts memory, or the C stack, on a hostile message.
Never puts a value of a message into an error, nor a name that only the message knows.
"""

from __future__ import annotations

import enum
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

__all__ = [
    "MAX_DEFINITION_BYTES",
    "CompiledSchema",
    "Encoding",
    "MessageMismatchError",
    "SchemaDefinitionError",
    "SchemaType",
    "compile_schema",
]

# The service's limit: https://cloud.google.com/pubsub/docs/schemas
MAX_DEFINITION_BYTES: Final = 300 * 1024

# One Python frame per level, in definitions and in messages of recursive types.
_MAX_NESTING: Final = 200
# An error travels in gRPC metadata, which clients cap at 8 KiB.
_MAX_ERROR_CHARS: Final = 1500
_PROTOC_TIMEOUT_SECONDS: Final = 30
_NEEDS_EXTRA: Final = "schemas need: pip install 'penstock[emulator]'"

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_AVRO_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_PROTOC_ERROR: Final = re.compile(r"^schema\.proto:(\d+):(\d+): (?!warning)(.*)$", re.MULTILINE)
_PROTOC_IMPORT: Final = re.compile(r'Import "([^"\n]*)" was not found')
_FAILED_FIELD: Final = re.compile(r"Failed to parse (\w+) field: ", re.ASCII)
_JSON_FORMAT_REASONS: Final = {
    " has no field named ": "an unknown field",
    " does not have extensions ": "an unknown field",
    " should not have multiple ": "two fields of which only one may be set",
}


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
        cut = len(text) - _MAX_ERROR_CHARS
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
            self._check_json(_load_json(data))
        else:
            self._check_binary(data)


def compile_schema(type: SchemaType, definition: str) -> CompiledSchema:  # noqa: A002  # API's name
    """Compile a definition; for Protocol Buffers this starts a process and waits for it.

    Raises:
        SchemaDefinitionError: The definition is not valid, or not one the service accepts.
    """
    try:
        source = definition.encode()
    except UnicodeEncodeError as exc:
        raise SchemaDefinitionError("the definition is not valid Unicode text") from exc
    if len(source) > MAX_DEFINITION_BYTES:
        raise SchemaDefinitionError(
            f"the definition has {len(source)} bytes, the limit is {MAX_DEFINITION_BYTES}"
        )
    is_avro = SchemaType(type) is SchemaType.AVRO
    return _compile_avro(source) if is_avro else _compile_protobuf(source)


def _load_json(data: bytes) -> Any:
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


def _json_kind(value: object) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return kinds.get(type(value), "null" if value is None else "a number")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def _is_byte_text(value: object) -> bool:
    # Avro's JSON form of bytes: one character per byte, code points 0 to 255.
    return isinstance(value, str) and max(value, default="") <= "\xff"


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise MessageMismatchError("the data ends inside a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 and number < 1 << 64:
            return (number >> 1) ^ -(number & 1), at
    raise MessageMismatchError("a number is longer than 64 bits")


def _skip_boolean(data: bytes, at: int) -> int:
    if data[at : at + 1] > b"\x01":
        raise MessageMismatchError("a boolean is neither 0 nor 1")
    return at + 1


def _skip_bytes(data: bytes, at: int) -> int:
    size, at = _read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise MessageMismatchError("a length is negative or reaches past the end of the data")
    return at + size


def _skip_string(data: bytes, at: int) -> int:
    start, end = _read_long(data, at)[1], _skip_bytes(data, at)
    try:
        data[start:end].decode()
    except UnicodeDecodeError:
        raise MessageMismatchError("a string is not UTF-8") from None
    return end


class _Node(Protocol):
    """An Avro type: `skip` checks and passes binary data, `check` checks parsed JSON."""

    @property
    def label(self) -> str: ...
    def skip(self, data: bytes, at: int, depth: int) -> int: ...
    def check(self, value: Any, depth: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Scalar:
    label: str
    pass_over: Callable[[bytes, int], int]
    accepts: Callable[[Any], bool]

    def skip(self, data: bytes, at: int, depth: int) -> int:  # noqa: ARG002  # _Node's form
        end = self.pass_over(data, at)
        if end > len(data):
            raise MessageMismatchError(f"the data ends inside a value of type {self.label}")
        return end

    def check(self, value: Any, depth: int) -> None:  # noqa: ARG002  # _Node's form
        if not self.accepts(value):
            raise MessageMismatchError(f"{_json_kind(value)} that is not a valid {self.label}")


def _integer(
    label: str, low: int, high: int, accepts: Callable[[Any], bool] | None = None
) -> _Scalar:
    def pass_over(data: bytes, at: int) -> int:
        number, at = _read_long(data, at)
        if not low <= number <= high:
            raise MessageMismatchError(f"a number out of range for {label}")
        return at

    return _Scalar(label, pass_over, accepts or (lambda v: type(v) is int and low <= v <= high))


def _real(label: str, size: int) -> _Scalar:
    # The comparison is false for an infinity, which a JSON number can overflow to.
    largest = sys.float_info.max
    return _Scalar(
        label, lambda _, at: at + size, lambda v: type(v) in (int, float) and abs(v) <= largest
    )


_PRIMITIVES: Final[dict[str, _Node]] = {
    "null": _Scalar("null", lambda _, at: at, lambda v: v is None),
    "boolean": _Scalar("boolean", _skip_boolean, lambda v: type(v) is bool),
    "int": _integer("int", -(1 << 31), (1 << 31) - 1),
    "long": _integer("long", -(1 << 63), (1 << 63) - 1),
    "float": _real("float", 4),
    "double": _real("double", 8),
    "bytes": _Scalar("bytes", _skip_bytes, _is_byte_text),
    "string": _Scalar("string", _skip_string, _is_text),
}


def _deeper(depth: int) -> int:
    if depth >= _MAX_NESTING:
        raise MessageMismatchError(f"values are nested more than {_MAX_NESTING} levels deep")
    return depth + 1


def _require(kind: type, label: str, value: object) -> None:
    if not isinstance(value, kind):
        raise MessageMismatchError(f"expected {label}, found {_json_kind(value)}")


@dataclass(frozen=True, slots=True)
class _Blocks:
    """An array or a map: blocks of items, with a key before each item of a map."""

    label: str
    item: _Node

    def skip(self, data: bytes, at: int, depth: int) -> int:
        depth, keyed = _deeper(depth), self.label == "map"
        while True:
            count, at = _read_long(data, at)
            if count == 0:
                return at
            size, at = _read_long(data, at) if count < 0 else (0, at)
            end = at + size
            for _ in range(abs(count)):
                start = at
                at = self.item.skip(data, _skip_string(data, at) if keyed else at, depth)
                # Items of no bytes (nulls) could be claimed by the trillion; one shows all.
                if at == start:
                    break
            if count < 0 and at != end:
                raise MessageMismatchError(f"a block of the {self.label} has a wrong size")

    def check(self, value: Any, depth: int) -> None:
        depth = _deeper(depth)
        _require(dict if self.label == "map" else list, self.label, value)
        if self.label == "map":
            for key in value:
                _PRIMITIVES["string"].check(key, depth)
            value = value.values()
        for item in value:
            self.item.check(item, depth)


@dataclass(frozen=True, slots=True)
class _Union:
    label: str
    branches: dict[str, _Node]

    def skip(self, data: bytes, at: int, depth: int) -> int:
        index, at = _read_long(data, at)
        if not 0 <= index < len(self.branches):
            raise MessageMismatchError(f"a branch number out of range for {self.label}")
        return list(self.branches.values())[index].skip(data, at, _deeper(depth))

    def check(self, value: Any, depth: int) -> None:
        tag, inner = ("null", None) if value is None else ("", value)
        if isinstance(value, dict) and len(value) == 1:
            ((tag, inner),) = value.items()
        if tag not in self.branches or (tag == "null") is not (value is None):
            raise MessageMismatchError(f'expected {self.label}, as null or {{"TYPE": value}}')
        self.branches[tag].check(inner, _deeper(depth))


@dataclass(frozen=True, slots=True)
class _Record:
    label: str
    fields: dict[str, _Node]

    def skip(self, data: bytes, at: int, depth: int) -> int:
        depth = _deeper(depth)
        for name, node in self.fields.items():
            try:
                at = node.skip(data, at, depth)
            except MessageMismatchError as error:
                error.path.append(name)
                raise
        return at

    def check(self, value: Any, depth: int) -> None:
        depth = _deeper(depth)
        _require(dict, f"record {self.label}", value)
        # A default serves readers of older data only: an encoded message has every field.
        if missing := [name for name in self.fields if name not in value]:
            raise MessageMismatchError(f"record {self.label} lacks {', '.join(missing)}")
        if extra := len(value) - len(self.fields):
            raise MessageMismatchError(f"{extra} field(s) that record {self.label} does not have")
        for name, node in self.fields.items():
            try:
                node.check(value[name], depth)
            except MessageMismatchError as error:
                error.path.append(name)
                raise


def _compile_avro(source: bytes) -> CompiledSchema:
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError as exc:
        raise SchemaDefinitionError(_NEEDS_EXTRA) from exc
    raw = _load_avro(source)
    try:
        # Without _force, a definition that claims to be parsed already goes unchecked.
        root = _avro_node(parse_schema(raw, _force=True), {})
    except SchemaDefinitionError:
        raise
    except (SchemaParseException, UnknownType) as exc:
        what = f"unknown type {exc}" if isinstance(exc, UnknownType) else str(exc)
        raise SchemaDefinitionError(f"not an Avro schema: {what[:_MAX_ERROR_CHARS]}") from exc
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
        raw = _load_json(source)
    except MessageMismatchError as exc:
        raise SchemaDefinitionError(f"the Avro definition cannot be read: {exc}") from exc
    if not isinstance(raw, dict) or raw.get("type") != "record":
        raise SchemaDefinitionError('the Avro definition must be one object with "type": "record"')
    # fastavro recurses on the C stack, which has no guard of its own.
    level, depth = [raw], 0
    while level:
        depth += 1
        level = [part for value in level for part in _parts(value)]
    if depth > _MAX_NESTING:
        raise SchemaDefinitionError(f"the Avro definition is nested deeper than {_MAX_NESTING}")
    return raw


def _parts(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _avro_node(schema: Any, names: dict[str, _Node]) -> _Node:
    if isinstance(schema, list):
        return _avro_union([_avro_node(branch, names) for branch in schema])
    if isinstance(schema, str):
        return _PRIMITIVES.get(schema) or names[schema]
    kind = schema["type"]
    if kind in ("array", "map"):
        return _Blocks(kind, _avro_node(schema["items" if kind == "array" else "values"], names))
    if kind not in ("record", "error", "enum", "fixed"):
        return _PRIMITIVES[kind]
    name = schema["name"]
    if not _AVRO_NAME.fullmatch(name):
        raise SchemaDefinitionError(f"{name!r} is not a valid Avro name")
    if kind == "fixed":
        names[name] = _avro_fixed(name, schema["size"])
    elif kind == "enum":
        symbols = list(schema["symbols"])
        names[name] = _integer(name, 0, len(symbols) - 1, lambda v: v in symbols)
    else:
        record = _Record(name, {})
        names[name] = record
        for part in schema["fields"]:
            if part["name"] in record.fields or not _AVRO_NAME.fullmatch(part["name"]):
                reason = "given twice or not a valid Avro name"
                raise SchemaDefinitionError(f"field {part['name']!r} of {name}: {reason}")
            record.fields[part["name"]] = _avro_node(part["type"], names)
    return names[name]


def _avro_fixed(name: str, size: object) -> _Node:
    if type(size) is not int or size < 0:
        raise SchemaDefinitionError(f"the size of fixed type {name} is not a number of bytes")
    return _Scalar(name, lambda _, at: at + size, lambda v: _is_byte_text(v) and len(v) == size)


def _avro_union(branches: list[_Node]) -> _Node:
    by_label = {branch.label: branch for branch in branches}
    label = f"one of {', '.join(by_label)}"
    if len(by_label) < len(branches) or any(isinstance(b, _Union) for b in branches):
        raise SchemaDefinitionError(f"a union repeats a type, or contains a union: {label}")
    return _Union(label, by_label)


def _compile_protobuf(source: bytes) -> CompiledSchema:
    try:
        from google.protobuf import descriptor_pool, json_format, message, message_factory
    except ImportError as exc:
        raise SchemaDefinitionError(_NEEDS_EXTRA) from exc
    # Up to protobuf 5 only some of what a wrong value raises is wrapped in ParseError.
    failures: tuple[type[Exception], ...] = (json_format.ParseError, ArithmeticError)
    failures += (AttributeError, LookupError, RecursionError, TypeError, ValueError)
    file = _run_protoc(source)
    # A pool per schema: two schemas may define messages of the same name.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    name = ".".join(filter(None, (file.package, file.message_type[0].name)))
    descriptor = pool.FindMessageTypeByName(name)
    message_class = message_factory.GetMessageClass(descriptor)

    def require_complete(made: Any) -> None:
        if not made.IsInitialized():
            # The paths may hold the keys of maps, which are values: keep the last names.
            missing = {path.rpartition(".")[2] for path in made.FindInitializationErrors()}
            raise MessageMismatchError(f"required fields are missing: {', '.join(sorted(missing))}")

    def check_binary(data: bytes) -> None:
        made = message_class()
        try:
            made.ParseFromString(data)
        except message.DecodeError:
            raise MessageMismatchError(f"not an encoded message of type {name}") from None
        require_complete(made)

    def check_json(value: Any) -> None:
        _require(dict, f"message {name}", value)
        made = message_class()
        try:
            json_format.ParseDict(value, made)
        except failures as exc:
            # The cause quotes values of the message, so only names the schema knows are kept.
            raise _proto_json_error(str(exc), descriptor) from None
        require_complete(made)

    return CompiledSchema(SchemaType.PROTOCOL_BUFFER, check_json, check_binary)


def _proto_json_error(text: str, descriptor: Descriptor | None) -> MessageMismatchError:
    path: list[str] = []
    while descriptor is not None and (failed := _FAILED_FIELD.match(text)):
        known = [f for f in descriptor.fields if failed[1] in (f.name, f.json_name)]
        if not known:
            break
        path.append(known[0].name)
        text = text[failed.end() :]
        descriptor = known[0].message_type
        if descriptor is not None and descriptor.GetOptions().map_entry:
            descriptor = descriptor.fields_by_name["value"].message_type
    reasons = (reason for sign, reason in _JSON_FORMAT_REASONS.items() if sign in text)
    error = MessageMismatchError(next(reasons, "a value that does not fit the type"))
    error.path = path[::-1]
    return error


def _run_protoc(source: bytes) -> FileDescriptorProto:
    from google.protobuf import descriptor_pb2

    if importlib.util.find_spec("grpc_tools") is None:
        raise SchemaDefinitionError(_NEEDS_EXTRA)
    # Relative names throughout, so that no message of protoc shows the directory.
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    command += ["--descriptor_set_out=schema.bin", "schema.proto"]
    with tempfile.TemporaryDirectory(prefix="penstock-schema-") as directory:
        Path(directory, "schema.proto").write_bytes(source)
        try:
            done = subprocess.run(  # noqa: S603  # fixed command; the definition is only a file
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROTOC_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            limit = f"{_PROTOC_TIMEOUT_SECONDS} s"
            raise SchemaDefinitionError(f"protoc did not finish within {limit}") from exc
        if done.returncode:
            raise SchemaDefinitionError(_explain_protoc(done.stderr.decode(errors="replace")))
        encoded = Path(directory, "schema.bin").read_bytes()
    file = descriptor_pb2.FileDescriptorSet.FromString(encoded).file[0]
    _require_one_type(file)
    return file


def _explain_protoc(stderr: str) -> str:
    if imports := _PROTOC_IMPORT.findall(stderr):
        return _refuse_imports(imports)
    found = [f"line {m[1]}, column {m[2]}: {m[3]}" for m in _PROTOC_ERROR.finditer(stderr)]
    return f"protoc: {'; '.join(found) or stderr.strip()}"[:_MAX_ERROR_CHARS]


def _refuse_imports(imports: Iterable[str]) -> str:
    names = ", ".join(imports)[:_MAX_ERROR_CHARS]
    return f"imports are not supported in a schema, define the types inside the message: {names}"


def _require_one_type(file: FileDescriptorProto) -> None:
    if file.dependency:
        raise SchemaDefinitionError(_refuse_imports(file.dependency))
    if file.syntax not in ("", "proto2", "proto3"):
        raise SchemaDefinitionError('the syntax must be "proto2" or "proto3", not an edition')
    types = [t.name for t in file.message_type] + [t.name for t in file.enum_type]
    if len(types) != 1 or not file.message_type:
        found = ", ".join(types)[:_MAX_ERROR_CHARS] or "none"
        raise SchemaDefinitionError(
            f"a schema has one top-level message, with other types nested in it; found: {found}"
        )
    # JSON has special rules for these names, which only the original types satisfy.
    if file.package == "google.protobuf":
        raise SchemaDefinitionError("the package google.protobuf is reserved")
