"""google.pubsub.v1.Publisher: topics and publishing; runs in the emulator's event loop."""

from __future__ import annotations

from typing import Any

from google.protobuf import empty_pb2, field_mask_pb2
from google.pubsub_v1.types import pubsub as api

from penstock.emulator.pubsub import names, wire
from penstock.emulator.pubsub.paging import page
from penstock.emulator.pubsub.resources import Topic
from penstock.emulator.pubsub.rpc import already_exists, invalid
from penstock.emulator.pubsub.schema_store import DELETED_SCHEMA
from penstock.emulator.pubsub.store import Store

_UPDATABLE = {
    "labels",
    "message_storage_policy",
    "kms_key_name",
    "schema_settings",
    "message_retention_duration",
    "ingestion_data_source_settings",
    "message_transforms",
}
_SHORTEST_RETENTION, _LONGEST_RETENTION = 600, 31 * 86400


class PublisherService:
    """The methods of the Publisher, each taking and giving protobuf messages (or wire bytes)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create_topic(self, request: Any) -> Any:
        """CreateTopic."""
        names.check_name(request.name, "topics")
        if request.name in self._store.topics:
            raise already_exists(request.name)
        self._check(request)
        settings = api.Topic.pb()()
        settings.CopyFrom(request)
        settings.state = api.Topic.State.ACTIVE
        self._store.topics[request.name] = Topic(settings)
        return settings

    def update_topic(self, request: Any) -> Any:
        """UpdateTopic."""
        topic = self._store.topic(request.topic.name)
        updated = merge_masked(topic.settings, request.topic, request.update_mask, _UPDATABLE)
        self._check(updated)
        topic.settings = updated
        for subscription in self._store.subscribers(topic):
            subscription.settings.topic_message_retention_duration.CopyFrom(
                updated.message_retention_duration
            )
            if not updated.HasField("message_retention_duration"):
                subscription.settings.ClearField("topic_message_retention_duration")
        return updated

    def _check(self, settings: Any) -> None:
        names.check_labels(settings.labels)
        if settings.HasField("message_retention_duration"):
            seconds = settings.message_retention_duration.ToSeconds()
            if not _SHORTEST_RETENTION <= seconds <= _LONGEST_RETENTION:
                raise invalid("message_retention_duration", f"{seconds}s is not 10m to 31d")
        if settings.schema_settings.schema:
            self._check_schema(settings.schema_settings)

    def _check_schema(self, settings: Any) -> None:
        if settings.schema == DELETED_SCHEMA:
            return
        self._store.schemas.get(settings.schema)
        if settings.encoding not in (1, 2):
            raise invalid("schema_settings.encoding", "is neither JSON nor BINARY")
        for revision in (settings.first_revision_id, settings.last_revision_id):
            if revision:
                self._store.schemas.get(f"{settings.schema}@{revision}")

    def publish(self, payload: bytes) -> bytes:
        """Publish, from wire bytes to wire bytes."""
        request = wire.decode_publish(payload)
        return wire.encode_publish_response(self._store.publish(request))

    def get_topic(self, request: Any) -> Any:
        """GetTopic."""
        names.check_name(request.topic, "topics", "topic")
        return self._store.topic(request.topic).settings

    def list_topics(self, request: Any) -> Any:
        """ListTopics."""
        names.check_project(request.project)
        found = [
            topic.settings
            for name, topic in sorted(self._store.topics.items())
            if name.startswith(request.project + "/")
        ]
        items, token = page(found, request.page_size, request.page_token)
        return api.ListTopicsResponse.pb()(topics=items, next_page_token=token)

    def list_topic_subscriptions(self, request: Any) -> Any:
        """ListTopicSubscriptions."""
        topic = self._store.topic(request.topic)
        found = sorted(subscription.name for subscription in self._store.subscribers(topic))
        items, token = page(found, request.page_size, request.page_token)
        response = api.ListTopicSubscriptionsResponse.pb()
        return response(subscriptions=items, next_page_token=token)

    def list_topic_snapshots(self, request: Any) -> Any:
        """ListTopicSnapshots."""
        topic = self._store.topic(request.topic)
        found = sorted(
            name for name, snapshot in self._store.snapshots.items() if snapshot.log is topic.log
        )
        items, token = page(found, request.page_size, request.page_token)
        return api.ListTopicSnapshotsResponse.pb()(snapshots=items, next_page_token=token)

    def delete_topic(self, request: Any) -> Any:
        """DeleteTopic."""
        self._store.delete_topic(self._store.topic(request.topic))
        return empty_pb2.Empty()

    def detach_subscription(self, request: Any) -> Any:
        """DetachSubscription: the backlog is dropped, and nothing can be pulled any more."""
        subscription = self._store.subscription(request.subscription)
        subscription.settings.detached = True
        subscription.backlog.drop_before(subscription.backlog.end)
        subscription.notify()
        return api.DetachSubscriptionResponse.pb()()


def merge_masked(current: Any, given: Any, mask: Any, updatable: set[str]) -> Any:
    """Apply an Update* request: the named fields of `given` replace those of `current`."""
    if not mask.paths:
        raise invalid("update_mask", "The update_mask in the request must be set and not empty")
    for path in mask.paths:
        if not field_mask_pb2.FieldMask(paths=[path]).IsValidForDescriptor(given.DESCRIPTOR):
            raise invalid("update_mask", f"there is no field {path!r}")
        if path.split(".")[0] not in updatable:
            raise invalid("update_mask", f"the field {path!r} cannot be changed")
    updated = type(current)()
    updated.CopyFrom(current)
    for path in mask.paths:
        if "." not in path:
            # FieldMask merges maps entry by entry; an update replaces the field as a whole.
            updated.ClearField(path)
    field_mask_pb2.FieldMask(paths=mask.paths).MergeMessage(
        given, updated, replace_message_field=True, replace_repeated_field=True
    )
    return updated
