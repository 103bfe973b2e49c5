"""Protocol Buffer schemas: compiling a definition with protoc, which runs in a process of its own.

Runs in the emulator process, which waits for protoc.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.emulator.pubsub.schema_types import (
    MAX_ERROR_CHARS,
    NEEDS_EXTRA,
    CompiledSchema,
    MessageMismatchError,
    SchemaDefinitionError,
    SchemaType,
    require,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_PROTOC_TIMEOUT_SECONDS: Final = 30
_PROTOC_ERROR: Final = re.compile(r"^schema\.proto:(\d+):(\d+): (?!warning)(.*)$", re.MULTILINE)
_PROTOC_IMPORT: Final = re.compile(r'Import "([^"\n]*)" was not found')
_FAILED_FIELD: Final = re.compile(r"Failed to parse (\w+) field: ", re.ASCII)
_JSON_FORMAT_REASONS: Final = {
    " has no field named ": "an unknown field",
    " does not have extensions ": "an unknown field",
    " should not have multiple ": "two fields of which only one may be set",
}


def compile_protobuf(source: bytes) -> CompiledSchema:
    """Compile a .proto file with one message."""
    try:
        from google.protobuf import descriptor_pool, json_format, message, message_factory
    except ImportError as exc:
        raise SchemaDefinitionError(NEEDS_EXTRA) from exc
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
        require(dict, f"message {name}", value)
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
        raise SchemaDefinitionError(NEEDS_EXTRA)
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
    return f"protoc: {'; '.join(found) or stderr.strip()}"[:MAX_ERROR_CHARS]


def _refuse_imports(imports: Iterable[str]) -> str:
    names = ", ".join(imports)[:MAX_ERROR_CHARS]
    return f"imports are not supported in a schema, define the types inside the message: {names}"


def _require_one_type(file: FileDescriptorProto) -> None:
    if file.dependency:
        raise SchemaDefinitionError(_refuse_imports(file.dependency))
    if file.syntax not in ("", "proto2", "proto3"):
        raise SchemaDefinitionError('the syntax must be "proto2" or "proto3", not an edition')
    types = [t.name for t in file.message_type] + [t.name for t in file.enum_type]
    if len(types) != 1 or not file.message_type:
        found = ", ".join(types)[:MAX_ERROR_CHARS] or "none"
        raise SchemaDefinitionError(
            f"a schema has one top-level message, with other types nested in it; found: {found}"
        )
    # JSON has special rules for these names, which only the original types satisfy.
    if file.package == "google.protobuf":
        raise SchemaDefinitionError("the package google.protobuf is reserved")
