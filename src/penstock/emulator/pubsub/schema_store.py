"""Schemas and their revisions, and the check of messages against them; runs in the event loop."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa
from google.pubsub_v1.types import schema as api

from penstock._core.clock import Clock
from penstock.emulator.pubsub.rpc import (
    RpcError,
    already_exists,
    failed_precondition,
    invalid,
    not_found,
)
from penstock.emulator.pubsub.schemas import (
    CompiledSchema,
    Encoding,
    MessageMismatchError,
    SchemaDefinitionError,
    SchemaType,
    compile_schema,
)
from penstock.emulator.pubsub.wire import PublishedMessages, encode_map_entries

MAX_REVISIONS = 20
DELETED_SCHEMA = "_deleted-schema_"


class SchemaStore:
    """All schemas by name; each a list of revisions, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._revisions: dict[str, list[Any]] = {}
        # Ids of all revisions there ever were, the deleted ones too.
        self._order: dict[str, list[str]] = {}
        self._compiled: dict[str, CompiledSchema] = {}

    def names(self) -> list[str]:
        """List the schemas."""
        return sorted(self._revisions)

    def create(self, name: str, schema: Any) -> Any:
        """Store a new schema's first revision."""
        if name in self._revisions:
            raise already_exists(name)
        self._revisions[name], self._order[name] = [], []
        try:
            return self._add(name, schema)
        except RpcError:
            del self._revisions[name], self._order[name]
            raise

    def commit(self, name: str, schema: Any) -> Any:
        """Store a further revision; its type must be that of the schema."""
        revisions = self._find(name)
        if schema.type_ != revisions[-1].type_:
            raise invalid("schema.type", "a schema's type cannot be changed by a revision")
        if len(revisions) >= MAX_REVISIONS:
            raise invalid("schema", f"the schema has {MAX_REVISIONS} revisions already")
        return self._add(name, schema)

    def _add(self, name: str, schema: Any) -> Any:
        compiled = compile_definition(schema)
        stored = api.Schema.pb()()
        stored.CopyFrom(schema)
        stored.name = name
        stored.revision_id = secrets.token_hex(4)
        stored.revision_create_time.FromMicroseconds(int(self._clock.time() * 1e6))
        self._revisions[name].append(stored)
        self._order[name].append(stored.revision_id)
        self._compiled[f"{name}@{stored.revision_id}"] = compiled
        return stored

    def _find(self, name: str) -> list[Any]:
        if name not in self._revisions:
            raise not_found(name)
        return self._revisions[name]

    def get(self, name: str) -> Any:
        """Give the newest revision, or the one that `name@revision` names."""
        base, _, revision = name.partition("@")
        for stored in reversed(self._find(base)):
            if revision in ("", stored.revision_id):
                return stored
        raise not_found(name)

    def revisions(self, name: str) -> list[Any]:
        """List all revisions, newest first."""
        return list(reversed(self._find(name)))

    def delete(self, name: str) -> None:
        """Remove a schema with all its revisions."""
        for stored in self._find(name):
            del self._compiled[f"{name}@{stored.revision_id}"]
        del self._revisions[name], self._order[name]

    def delete_revision(self, name: str) -> Any:
        """Remove one revision, `name@revision`; the last one cannot go."""
        base, _, revision = name.partition("@")
        if not revision:
            raise invalid("name", f"{name!r} names no revision: write schema@revision")
        stored = self.get(name)
        if len(self._revisions[base]) == 1:
            raise invalid("name", "the only revision of a schema cannot be deleted")
        self._revisions[base].remove(stored)
        del self._compiled[name]
        return self.get(base)

    def compiled(self, stored: Any) -> CompiledSchema:
        """Give the compiled form of a stored revision."""
        return self._compiled[f"{stored.name}@{stored.revision_id}"]

    def check(self, settings: Any, request: PublishedMessages) -> pa.BinaryArray | None:
        """Check messages against a topic's schema.

        Returns the attributes that the service adds to each, encoded; None without a schema.
        """
        if not settings.schema:
            return None
        if settings.schema not in self._revisions:
            raise failed_precondition("The topic's schema has been deleted.")
        allowed = self._allowed(settings)
        encoding = Encoding(settings.encoding)
        # A revision is all that can differ: few texts, however many messages.
        added = {
            stored.revision_id: encode_map_entries(
                {
                    "googclient_schemaencoding": encoding.name,
                    "googclient_schemaname": settings.schema,
                    "googclient_schemarevisionid": stored.revision_id,
                }
            )
            for stored in allowed
        }
        found = (self._first_match(allowed, data.as_py(), encoding) for data in request.data)
        return pa.array([added[revision] for revision in found], pa.binary())

    def _allowed(self, settings: Any) -> list[Any]:
        """List the revisions that a topic takes, newest first.

        A deleted revision still marks its place: the range goes on at its neighbour.
        """
        order = self._order[settings.schema]
        first, last = settings.first_revision_id, settings.last_revision_id
        low = order.index(first) if first in order else 0
        high = order.index(last) if last in order else len(order) - 1
        inside = set(order[low : high + 1])
        return [s for s in self.revisions(settings.schema) if s.revision_id in inside]

    def _first_match(self, allowed: list[Any], data: bytes, encoding: Encoding) -> str:
        reason = "no revision is allowed"
        for stored in allowed:
            try:
                self.compiled(stored).check(data, encoding)
            except MessageMismatchError as exc:
                reason = str(exc)
            else:
                return str(stored.revision_id)
        raise invalid("message.data", f"a message failed schema validation: {reason}")


def compile_definition(schema: Any) -> CompiledSchema:
    """Compile a google.pubsub.v1.Schema or fail with INVALID_ARGUMENT."""
    try:
        kind = SchemaType(schema.type_)
    except ValueError:
        raise invalid("schema.type", "is neither AVRO nor PROTOCOL_BUFFER") from None
    try:
        return compile_schema(kind, schema.definition)
    except SchemaDefinitionError as exc:
        raise invalid("schema.definition", str(exc)) from None
