"""Schemas: revisions, and what a topic with a schema takes."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from google.api_core import exceptions
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import SchemaServiceClient
from google.pubsub_v1.types import Encoding, Schema, SchemaView

from tests.support.pubsub_service import PROJECT, Service, fields_of

NAME = f"{PROJECT}/schemas/shape"


def avro(*fields: str) -> dict[str, Any]:
    """An Avro record of long fields."""
    parts = [{"name": name, "type": "long"} for name in fields]
    definition = json.dumps({"type": "record", "name": "Shape", "fields": parts})
    return {"type_": Schema.Type.AVRO, "definition": definition}


def avro_bytes(**values: int) -> bytes:
    buffer = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(avro(*values)["definition"]))
    fastavro.schemaless_writer(buffer, schema, values)
    return buffer.getvalue()


PROTO = {
    "type_": Schema.Type.PROTOCOL_BUFFER,
    "definition": 'syntax = "proto3"; message Shape { int64 sides = 1; string name = 2; }',
}


@pytest.fixture
def schemas(service: Service) -> Iterator[SchemaServiceClient]:
    with SchemaServiceClient() as client:
        yield client


def create(schemas: SchemaServiceClient, schema: dict[str, Any]) -> Schema:
    return schemas.create_schema(parent=PROJECT, schema=schema, schema_id="shape")


def commit(schemas: SchemaServiceClient, schema: dict[str, Any]) -> Schema:
    return schemas.commit_schema(name=NAME, schema=schema)


def topic_with(service: Service, encoding: Encoding, **more: str) -> str:
    return service.topic(schema_settings={"schema": NAME, "encoding": encoding, **more})


def test_schema_is_created_read_listed_and_deleted(
    service: Service, schemas: SchemaServiceClient
) -> None:
    """A schema has the methods of a resource, and its definition in the full view only."""
    created = create(schemas, avro("sides"))
    assert created.name == NAME
    assert len(created.revision_id) == 8
    assert created.revision_create_time.timestamp() == service.clock.time()
    assert schemas.get_schema(name=NAME) == created
    basic = schemas.get_schema(request={"name": NAME, "view": SchemaView.BASIC})
    assert basic.definition == ""
    assert basic.revision_id == created.revision_id
    with pytest.raises(exceptions.AlreadyExists):
        create(schemas, avro("sides"))
    for n in range(4):
        schemas.create_schema(parent=PROJECT, schema=avro("x"), schema_id=f"more-{n}")
    pages = schemas.list_schemas(request={"parent": PROJECT, "page_size": 2}).pages
    assert [len(page.schemas) for page in pages] == [2, 2, 1]
    schemas.delete_schema(name=NAME)
    for call in (schemas.get_schema, schemas.delete_schema, schemas.list_schema_revisions):
        with pytest.raises(exceptions.NotFound):
            list(call(name=NAME) or ())


def test_revisions_are_committed_listed_rolled_back_and_deleted(
    schemas: SchemaServiceClient,
) -> None:
    """A commit makes the newest revision; a rollback makes an old text the newest."""
    first = create(schemas, avro("a"))
    second = commit(schemas, avro("a", "b"))
    assert schemas.get_schema(name=NAME) == second
    assert schemas.get_schema(name=f"{NAME}@{first.revision_id}") == first
    listed = schemas.list_schema_revisions(request={"name": NAME, "view": SchemaView.FULL})
    assert list(listed) == [second, first]
    third = schemas.rollback_schema(name=NAME, revision_id=first.revision_id)
    assert third.definition == first.definition
    assert third.revision_id not in (first.revision_id, second.revision_id)
    newest = schemas.delete_schema_revision(request={"name": f"{NAME}@{third.revision_id}"})
    assert newest == second
    schemas.delete_schema_revision(request={"name": f"{NAME}@{first.revision_id}"})
    with pytest.raises(exceptions.InvalidArgument):
        schemas.delete_schema_revision(request={"name": f"{NAME}@{second.revision_id}"})
    with pytest.raises(exceptions.NotFound):
        schemas.get_schema(name=f"{NAME}@{first.revision_id}")
    with pytest.raises(exceptions.NotFound):
        schemas.rollback_schema(name=NAME, revision_id="00000000")


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type_": Schema.Type.AVRO, "definition": "{"}, "schema.definition"),
        ({"type_": Schema.Type.AVRO, "definition": '{"type": "int"}'}, "schema.definition"),
        ({"type_": Schema.Type.PROTOCOL_BUFFER, "definition": "message"}, "schema.definition"),
        ({"definition": "{}"}, "schema.type"),
    ],
)
def test_bad_definition_is_refused(
    schemas: SchemaServiceClient, schema: dict[str, Any], field: str
) -> None:
    """CreateSchema, CommitSchema and ValidateSchema refuse what is no definition."""
    for call in (
        lambda: create(schemas, schema),
        lambda: schemas.validate_schema(parent=PROJECT, schema=schema),
    ):
        with pytest.raises(exceptions.InvalidArgument) as caught:
            call()
        assert fields_of(caught.value) == [field]
    assert list(schemas.list_schemas(parent=PROJECT)) == []


def test_revision_of_another_type_is_refused(schemas: SchemaServiceClient) -> None:
    """An Avro schema stays Avro, and names with a revision take no commit."""
    first = create(schemas, avro("a"))
    with pytest.raises(exceptions.InvalidArgument) as caught:
        commit(schemas, PROTO)
    assert fields_of(caught.value) == ["schema.type"]
    for call in (
        lambda name: schemas.commit_schema(name=name, schema=avro("a")),
        lambda name: list(schemas.list_schema_revisions(name=name)),
        lambda name: schemas.delete_schema(name=name),
    ):
        with pytest.raises(exceptions.NotFound):
            call(f"{NAME}@{first.revision_id}")


def test_definitions_and_messages_are_validated_on_request(schemas: SchemaServiceClient) -> None:
    """ValidateSchema and ValidateMessage say yes or INVALID_ARGUMENT and store nothing."""
    schemas.validate_schema(parent=PROJECT, schema=avro("a"))
    schemas.validate_schema(parent=PROJECT, schema=PROTO)
    assert list(schemas.list_schemas(parent=PROJECT)) == []
    create(schemas, avro("a"))
    request = {"parent": PROJECT, "name": NAME, "encoding": Encoding.JSON}
    schemas.validate_message(request={**request, "message": b'{"a": 1}'})
    with pytest.raises(exceptions.InvalidArgument) as caught:
        schemas.validate_message(request={**request, "message": b'{"a": "1"}'})
    assert fields_of(caught.value) == ["message"]
    inline = {"parent": PROJECT, "schema": PROTO, "encoding": Encoding.BINARY}
    schemas.validate_message(request={**inline, "message": b"\x08\x03"})
    with pytest.raises(exceptions.InvalidArgument):
        schemas.validate_message(request={**inline, "message": b"\x08"})
    with pytest.raises(exceptions.InvalidArgument) as caught:
        schemas.validate_message(request={**request, "encoding": 0, "message": b"{}"})
    assert fields_of(caught.value) == ["encoding"]


@pytest.mark.parametrize(
    ("schema", "encoding", "good", "bad"),
    [
        (avro("sides"), Encoding.JSON, b'{"sides": 3}', b'{"sides": 3.5}'),
        (avro("sides"), Encoding.BINARY, avro_bytes(sides=3), b""),
        (avro("sides"), Encoding.BINARY, avro_bytes(sides=3), avro_bytes(sides=3) + b"x"),
        (PROTO, Encoding.JSON, b'{"sides": 3, "name": "x"}', b'{"corners": 3}'),
        (PROTO, Encoding.BINARY, b"\x08\x03\x12\x01x", b"\x08\x03\x12\x05x"),
    ],
)
def test_topic_takes_only_what_fits_its_schema(
    service: Service,
    schemas: SchemaServiceClient,
    schema: dict[str, Any],
    encoding: Encoding,
    good: bytes,
    bad: bytes,
) -> None:
    """A message that does not fit refuses the whole request; one that does is marked."""
    revision = create(schemas, schema).revision_id
    topic = topic_with(service, encoding)
    subscription = service.subscription(topic)
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.publish(topic, good, {"data": bad, "attributes": {"k": "v"}})
    assert fields_of(caught.value) == ["message.data"]
    assert service.emulator.topic_counters(topic).published == 0
    service.publish(topic, {"data": good, "attributes": {"k": "v"}}, good)
    first, second = service.pull(subscription)
    added = {
        "googclient_schemaname": NAME,
        "googclient_schemaencoding": encoding.name,
        "googclient_schemarevisionid": revision,
    }
    assert dict(first.message.attributes) == {"k": "v", **added}
    assert dict(second.message.attributes) == added
    assert second.message.data == good


def test_topic_takes_the_revisions_of_its_range(
    service: Service, schemas: SchemaServiceClient
) -> None:
    """first_revision_id and last_revision_id bound what fits; each message tells its revision."""
    revisions = [create(schemas, avro("a")), commit(schemas, avro("a", "b"))]
    revisions += [commit(schemas, avro("a", "b", "c"))]
    ids = [revision.revision_id for revision in revisions]
    messages = [b'{"a": 1}', b'{"a": 1, "b": 2}', b'{"a": 1, "b": 2, "c": 3}']
    topic = topic_with(service, Encoding.JSON)
    subscription = service.subscription(topic)

    def taken() -> list[str]:
        """Publish each message by itself; give the revisions that the stored ones have."""
        for message in messages:
            with contextlib.suppress(exceptions.InvalidArgument):
                service.publish(topic, message)
        received = service.pull(subscription)
        service.ack(subscription, received) if received else None
        return [m.message.attributes["googclient_schemarevisionid"] for m in received]

    def limit(**bounds: str) -> None:
        settings = {"schema": NAME, "encoding": Encoding.JSON, **bounds}
        service.publisher.update_topic(
            request={
                "topic": {"name": topic, "schema_settings": settings},
                "update_mask": field_mask_pb2.FieldMask(paths=["schema_settings"]),
            }
        )

    service.publish(topic, *messages)
    received = service.pull(subscription)
    service.ack(subscription, received)
    assert [m.message.attributes["googclient_schemarevisionid"] for m in received] == ids
    limit(first_revision_id=ids[1])
    assert taken() == ids[1:]
    limit(last_revision_id=ids[1])
    assert taken() == ids[:2]
    limit(first_revision_id=ids[1], last_revision_id=ids[1])
    assert taken() == ids[1:2]
    # A deleted bound stands for its neighbour inside the range.
    limit(first_revision_id=ids[0], last_revision_id=ids[1])
    schemas.delete_schema_revision(request={"name": f"{NAME}@{ids[1]}"})
    assert taken() == ids[:1]
    with pytest.raises(exceptions.NotFound):
        limit(first_revision_id=ids[1])


def test_topic_of_a_deleted_schema_takes_nothing(
    service: Service, schemas: SchemaServiceClient
) -> None:
    """The topic shows _deleted-schema_, publishing fails until the schema is taken off."""
    create(schemas, avro("a"))
    topic = topic_with(service, Encoding.JSON)
    service.publish(topic, b'{"a": 1}')
    schemas.delete_schema(name=NAME)
    settings = service.publisher.get_topic(topic=topic).schema_settings
    assert settings.schema == "_deleted-schema_"
    with pytest.raises(exceptions.FailedPrecondition):
        service.publish(topic, b'{"a": 1}')
    service.publisher.update_topic(
        request={
            "topic": {"name": topic},
            "update_mask": field_mask_pb2.FieldMask(paths=["schema_settings"]),
        }
    )
    service.publish(topic, b"anything")


def test_topic_needs_an_encoding_with_its_schema(
    service: Service, schemas: SchemaServiceClient
) -> None:
    """A schema without an encoding is INVALID_ARGUMENT."""
    create(schemas, avro("a"))
    with pytest.raises(exceptions.InvalidArgument) as caught:
        topic_with(service, Encoding.ENCODING_UNSPECIFIED)
    assert fields_of(caught.value) == ["schema_settings.encoding"]
