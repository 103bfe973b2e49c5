"""Topic schemas: compiling a definition, and checking a message against it.

Runs in the emulator process; protoc runs in a process of its own, in a temporary directory.
"""

from __future__ import annotations

from typing import Final

from penstock.emulator.pubsub.avro import compile_avro
from penstock.emulator.pubsub.protobuf import compile_protobuf
from penstock.emulator.pubsub.schema_types import (
    CompiledSchema,
    Encoding,
    MessageMismatchError,
    SchemaDefinitionError,
    SchemaType,
)

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
    return compile_avro(source) if is_avro else compile_protobuf(source)
