"""Descriptors of the Pub/Sub messages that carry data; runs in workers, agents and the emulator.

They are built here, in a pool of their own, for two reasons: importing the generated API costs
every Python worker most of a second, and the same wire bytes can be read under several
descriptions. `Raw*` messages declare a nested message as `bytes`, which is the same on the wire:
that is how payloads are moved without being taken apart.

Field numbers are those of google/pubsub/v1/pubsub.proto; `tests/unit/pubsub/test_protos.py`
compares them with the official package.
"""

from __future__ import annotations

import functools
from typing import Any

import ptars
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "bool": _FIELD.TYPE_BOOL,
}
_TIMESTAMP = ".google.protobuf.Timestamp"

# message -> field -> (number, type); "*" marks a repeated field, "map" is map<string, string>.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "PubsubMessage": {
        "data": (1, "bytes"),
        "attributes": (2, "map"),
        "message_id": (3, "string"),
        "publish_time": (4, _TIMESTAMP),
        "ordering_key": (5, "string"),
    },
    "PublishRequest": {"topic": (1, "string"), "messages": (2, "*PubsubMessage")},
    "PublishResponse": {"message_ids": (1, "*string")},
    "ReceivedMessage": {
        "ack_id": (1, "string"),
        "message": (2, "PubsubMessage"),
        "delivery_attempt": (3, "int32"),
    },
    "AcknowledgeConfirmation": {
        "ack_ids": (1, "*string"),
        "invalid_ack_ids": (2, "*string"),
        "unordered_ack_ids": (3, "*string"),
        "temporary_failed_ack_ids": (4, "*string"),
    },
    "ModifyAckDeadlineConfirmation": {
        "ack_ids": (1, "*string"),
        "invalid_ack_ids": (2, "*string"),
        "temporary_failed_ack_ids": (3, "*string"),
    },
    "SubscriptionProperties": {
        "exactly_once_delivery_enabled": (1, "bool"),
        "message_ordering_enabled": (2, "bool"),
    },
    "StreamingPullResponse": {
        "received_messages": (1, "*ReceivedMessage"),
        "modify_ack_deadline_confirmation": (3, "ModifyAckDeadlineConfirmation"),
        "subscription_properties": (4, "SubscriptionProperties"),
        "acknowledge_confirmation": (5, "AcknowledgeConfirmation"),
    },
    "PullResponse": {"received_messages": (1, "*ReceivedMessage")},
    "PullRequest": {
        "subscription": (1, "string"),
        "return_immediately": (2, "bool"),
        "max_messages": (3, "int32"),
    },
    "AcknowledgeRequest": {"subscription": (1, "string"), "ack_ids": (2, "*string")},
    "ModifyAckDeadlineRequest": {
        "subscription": (1, "string"),
        "ack_deadline_seconds": (3, "int32"),
        "ack_ids": (4, "*string"),
    },
    "StreamingPullRequest": {
        "subscription": (1, "string"),
        "ack_ids": (2, "*string"),
        "modify_deadline_seconds": (3, "*int32"),
        "modify_deadline_ack_ids": (4, "*string"),
        "stream_ack_deadline_seconds": (5, "int32"),
        "client_id": (6, "string"),
        "max_outstanding_messages": (7, "int64"),
        "max_outstanding_bytes": (8, "int64"),
        "protocol_version": (10, "int64"),
    },
    # What the sink and the batch read ask before they start.
    "GetTopicRequest": {"topic": (1, "string")},
    "GetSubscriptionRequest": {"subscription": (1, "string")},
    "TestIamPermissionsRequest": {"resource": (1, "string"), "permissions": (2, "*string")},
    "TestIamPermissionsResponse": {"permissions": (1, "*string")},
    "PushConfig": {"push_endpoint": (1, "string")},
    "BigQueryConfig": {"table": (1, "string")},
    "CloudStorageConfig": {"bucket": (1, "string")},
    "BigtableConfig": {"table": (1, "string")},
    "Subscription": {
        "push_config": (4, "PushConfig"),
        "ack_deadline_seconds": (5, "int32"),
        "detached": (15, "bool"),
        "bigquery_config": (18, "BigQueryConfig"),
        "cloud_storage_config": (22, "CloudStorageConfig"),
        "bigtable_config": (27, "BigtableConfig"),
    },
    "RawPublishRequest": {"topic": (1, "string"), "messages": (2, "*bytes")},
    "RawReceivedMessage": {
        "ack_id": (1, "string"),
        "message": (2, "bytes"),
        "delivery_attempt": (3, "int32"),
    },
    "RawPullResponse": {"received_messages": (1, "*RawReceivedMessage")},
    # What a server must know of a message to filter and order it, and its payload alone.
    "MessageHead": {"attributes": (2, "map"), "ordering_key": (5, "string")},
    "PublishRequestHeads": {"messages": (2, "*MessageHead")},
    "MessageData": {"data": (1, "bytes")},
    "PublishRequestData": {"messages": (2, "*MessageData")},
}


def _add_map_entry(message: Any) -> None:
    entry = message.nested_type.add(name="AttributesEntry")
    entry.options.map_entry = True
    for name, number in (("key", 1), ("value", 2)):
        entry.field.add(
            name=name, number=number, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING
        )


def _set_type(field: Any, package: str, message_name: str, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _FIELD.TYPE_MESSAGE
    if kind == "map":
        field.type_name = f".{package}.{message_name}.AttributesEntry"
    else:
        field.type_name = f".{package}.{kind}" if kind in _MESSAGES else kind


def _build_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="penstock/pubsub.proto",
        package="penstock.pubsub",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number, label=_FIELD.LABEL_OPTIONAL)
            if kind.startswith("*") or kind == "map":
                field.label = _FIELD.LABEL_REPEATED
            if kind == "map":
                _add_map_entry(message)
            _set_type(field, file.package, message_name, kind.removeprefix("*"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(file.name)


@functools.cache
def _pool() -> tuple[Any, ptars.HandlerPool]:
    # Spark holds timestamps in microseconds.
    file = _build_file()
    return file, ptars.HandlerPool([file], ptars.PtarsConfig(timestamp_unit="us"))


@functools.cache
def descriptor(message_name: str) -> Any:
    """Give the protobuf descriptor of one message."""
    return _pool()[0].message_types_by_name[message_name]


@functools.cache
def handler(message_name: str) -> Any:
    """Give the converter between one message's wire bytes and Arrow; made once per process."""
    return _pool()[1].get_for_message(descriptor(message_name))


@functools.cache
def message_class(message_name: str) -> Any:
    """Give the protobuf class of one message, for what is built one at a time."""
    return message_factory.GetMessageClass(descriptor(message_name))
