"""google.pubsub.v1.SchemaService; runs in the emulator's event loop."""

from __future__ import annotations

from typing import Any

from google.protobuf import empty_pb2
from google.pubsub_v1.types import schema as api

from penstock.emulator.pubsub import names
from penstock.emulator.pubsub.paging import page
from penstock.emulator.pubsub.rpc import invalid
from penstock.emulator.pubsub.schema_store import DELETED_SCHEMA, compile_definition
from penstock.emulator.pubsub.schemas import Encoding, MessageMismatchError
from penstock.emulator.pubsub.store import Store


class SchemaService:
    """The methods of the SchemaService."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._schemas = store.schemas

    def create_schema(self, request: Any) -> Any:
        """CreateSchema."""
        names.check_project(request.parent, "parent")
        name = f"{request.parent}/schemas/{request.schema_id}"
        names.check_name(name, "schemas", "schema_id")
        return self._schemas.create(name, request.schema)

    def get_schema(self, request: Any) -> Any:
        """GetSchema."""
        return _view(self._schemas.get(request.name), request.view)

    def list_schemas(self, request: Any) -> Any:
        """ListSchemas."""
        names.check_project(request.parent, "parent")
        found = [
            _view(self._schemas.get(name), request.view or api.SchemaView.BASIC)
            for name in self._schemas.names()
            if name.startswith(request.parent + "/")
        ]
        items, token = page(found, request.page_size, request.page_token)
        return api.ListSchemasResponse.pb()(schemas=items, next_page_token=token)

    def list_schema_revisions(self, request: Any) -> Any:
        """ListSchemaRevisions."""
        view = request.view or api.SchemaView.BASIC
        found = [_view(stored, view) for stored in self._schemas.revisions(request.name)]
        items, token = page(found, request.page_size, request.page_token)
        return api.ListSchemaRevisionsResponse.pb()(schemas=items, next_page_token=token)

    def commit_schema(self, request: Any) -> Any:
        """CommitSchema."""
        return self._schemas.commit(request.name, request.schema)

    def rollback_schema(self, request: Any) -> Any:
        """RollbackSchema: the old revision's text becomes a new revision."""
        old = self._schemas.get(f"{request.name}@{request.revision_id}")
        return self._schemas.commit(request.name, old)

    def delete_schema_revision(self, request: Any) -> Any:
        """DeleteSchemaRevision."""
        return self._schemas.delete_revision(request.name)

    def delete_schema(self, request: Any) -> Any:
        """DeleteSchema."""
        self._schemas.delete(request.name)
        for topic in self._store.topics.values():
            if topic.settings.schema_settings.schema == request.name:
                topic.settings.schema_settings.schema = DELETED_SCHEMA
        return empty_pb2.Empty()

    def validate_schema(self, request: Any) -> Any:
        """ValidateSchema."""
        names.check_project(request.parent, "parent")
        compile_definition(request.schema)
        return api.ValidateSchemaResponse.pb()()

    def validate_message(self, request: Any) -> Any:
        """ValidateMessage, against a stored schema or one in the request."""
        names.check_project(request.parent, "parent")
        if request.WhichOneof("schema_spec") == "name":
            compiled = self._schemas.compiled(self._schemas.get(request.name))
        else:
            compiled = compile_definition(request.schema)
        try:
            encoding = Encoding(request.encoding)
        except ValueError:
            raise invalid("encoding", "is neither JSON nor BINARY") from None
        try:
            compiled.check(request.message, encoding)
        except MessageMismatchError as exc:
            raise invalid("message", str(exc)) from None
        return api.ValidateMessageResponse.pb()()


def _view(schema: Any, view: int) -> Any:
    """Leave the definition out of a basic view."""
    if view != api.SchemaView.BASIC:
        return schema
    basic = type(schema)()
    basic.CopyFrom(schema)
    basic.ClearField("definition")
    return basic
