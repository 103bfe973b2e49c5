"""google.iam.v1.IAMPolicy: everything is granted but what the admin API denied."""

from __future__ import annotations

from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2

from penstock.emulator.pubsub.rpc import Code, RpcError, not_found
from penstock.emulator.pubsub.store import Store

# The permission that each method asks for: https://cloud.google.com/pubsub/docs/access-control
PERMISSIONS = {
    "Publish": "pubsub.topics.publish",
    "CreateTopic": "pubsub.topics.create",
    "GetTopic": "pubsub.topics.get",
    "ListTopics": "pubsub.topics.list",
    "ListTopicSubscriptions": "pubsub.topics.get",
    "ListTopicSnapshots": "pubsub.topics.get",
    "UpdateTopic": "pubsub.topics.update",
    "DeleteTopic": "pubsub.topics.delete",
    "DetachSubscription": "pubsub.topics.detachSubscription",
    "CreateSubscription": "pubsub.subscriptions.create",
    "GetSubscription": "pubsub.subscriptions.get",
    "ListSubscriptions": "pubsub.subscriptions.list",
    "UpdateSubscription": "pubsub.subscriptions.update",
    "ModifyPushConfig": "pubsub.subscriptions.update",
    "DeleteSubscription": "pubsub.subscriptions.delete",
    "Pull": "pubsub.subscriptions.consume",
    "StreamingPull": "pubsub.subscriptions.consume",
    "Acknowledge": "pubsub.subscriptions.consume",
    "ModifyAckDeadline": "pubsub.subscriptions.consume",
    "Seek": "pubsub.subscriptions.consume",
    "CreateSnapshot": "pubsub.snapshots.create",
    "GetSnapshot": "pubsub.snapshots.get",
    "ListSnapshots": "pubsub.snapshots.list",
    "UpdateSnapshot": "pubsub.snapshots.update",
    "DeleteSnapshot": "pubsub.snapshots.delete",
    "CreateSchema": "pubsub.schemas.create",
    "GetSchema": "pubsub.schemas.get",
    "ListSchemas": "pubsub.schemas.list",
    "ListSchemaRevisions": "pubsub.schemas.listRevisions",
    "CommitSchema": "pubsub.schemas.commit",
    "RollbackSchema": "pubsub.schemas.rollback",
    "DeleteSchema": "pubsub.schemas.delete",
    "DeleteSchemaRevision": "pubsub.schemas.delete",
    "ValidateSchema": "pubsub.schemas.validate",
    "ValidateMessage": "pubsub.schemas.validate",
}


def check_permission(store: Store, method: str) -> None:
    """Refuse a method whose permission was denied everywhere."""
    permission = PERMISSIONS.get(method, "")
    if (permission, "*") in store.denied:
        raise RpcError(
            Code.PERMISSION_DENIED,
            f"User not authorized to perform this action ({permission}).",
        )


class IamService:
    """The methods of IAMPolicy for topics, subscriptions, snapshots and schemas."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._policies: dict[str, Any] = {}

    def set_iam_policy(self, request: Any) -> Any:
        """SetIamPolicy: kept and given back, not enforced."""
        self._require(request.resource)
        self._policies[request.resource] = request.policy
        return request.policy

    def get_iam_policy(self, request: Any) -> Any:
        """GetIamPolicy."""
        self._require(request.resource)
        return self._policies.get(request.resource, policy_pb2.Policy())

    def test_iam_permissions(self, request: Any) -> Any:
        """TestIamPermissions; a resource that does not exist has none, as in the service."""
        response = iam_policy_pb2.TestIamPermissionsResponse()
        try:
            self._require(request.resource)
        except RpcError:
            return response
        response.permissions.extend(
            permission
            for permission in request.permissions
            if (permission, "*") not in self._store.denied
        )
        return response

    def _require(self, resource: str) -> None:
        known = (self._store.topics, self._store.subscriptions, self._store.snapshots)
        if not any(resource in found for found in known):
            if resource in self._store.schemas.names():
                return
            raise not_found(resource)
