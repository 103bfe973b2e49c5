"""IAM: policies are kept, permissions are tested, and a denied one is enforced."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.iam.v1 import policy_pb2
from google.pubsub_v1 import SchemaServiceClient

from tests.support.pubsub_service import PROJECT, Service
from tests.support.waiting import wait_for


def granted(client: Any, resource: str, *permissions: str) -> list[str]:
    request = {"resource": resource, "permissions": permissions}
    return list(client.test_iam_permissions(request=request).permissions)


def test_everything_is_granted_that_was_not_denied(service: Service) -> None:
    """TestIamPermissions gives back what was asked for, less what was denied."""
    topic, subscription = service.pair()
    asked = ("pubsub.topics.publish", "pubsub.topics.get")
    assert granted(service.publisher, topic, *asked) == list(asked)
    service.emulator.deny("pubsub.topics.publish")
    assert granted(service.publisher, topic, *asked) == ["pubsub.topics.get"]
    consume = ("pubsub.subscriptions.consume",)
    assert granted(service.subscriber, subscription, *consume) == list(consume)
    service.emulator.allow("pubsub.topics.publish")
    assert granted(service.publisher, topic, *asked) == list(asked)


def test_nothing_is_granted_on_what_does_not_exist(service: Service) -> None:
    """An unknown resource has no permissions, and that is no error."""
    assert granted(service.publisher, f"{PROJECT}/topics/none", "pubsub.topics.get") == []


def test_policy_is_kept(service: Service) -> None:
    """SetIamPolicy is read back by GetIamPolicy; before it the policy is empty."""
    topic = service.topic()
    assert not service.publisher.get_iam_policy(request={"resource": topic}).bindings
    policy = policy_pb2.Policy(
        bindings=[policy_pb2.Binding(role="roles/pubsub.publisher", members=["user:a@b.c"])]
    )
    service.publisher.set_iam_policy(request={"resource": topic, "policy": policy})
    assert service.publisher.get_iam_policy(request={"resource": topic}) == policy
    with pytest.raises(exceptions.NotFound):
        service.publisher.get_iam_policy(request={"resource": f"{PROJECT}/topics/none"})


def test_denied_permission_refuses_its_methods(service: Service) -> None:
    """What a caller may not do is PERMISSION_DENIED, and all else works."""
    topic, subscription = service.pair()
    service.emulator.deny("pubsub.topics.publish")
    with pytest.raises(exceptions.PermissionDenied, match=r"pubsub\.topics\.publish"):
        service.publish(topic, b"x")
    service.publisher.get_topic(topic=topic)
    service.emulator.deny("pubsub.subscriptions.consume")
    for call in (
        lambda: service.pull(subscription),
        lambda: service.subscriber.acknowledge(subscription=subscription, ack_ids=["x"]),
        lambda: service.subscriber.seek(request={"subscription": subscription}),
    ):
        with pytest.raises(exceptions.PermissionDenied):
            call()
    service.emulator.allow("pubsub.topics.publish")
    service.publish(topic, b"x")
    service.emulator.deny("pubsub.schemas.list")
    with pytest.raises(exceptions.PermissionDenied):
        list(SchemaServiceClient().list_schemas(parent=PROJECT))


def test_denied_permission_ends_open_streams(service: Service) -> None:
    """A stream that may not consume any more ends with PERMISSION_DENIED."""
    _, subscription = service.pair()
    stream = service.stream(subscription)
    wait_for(lambda: stream.responses)
    service.emulator.deny("pubsub.subscriptions.consume")
    assert isinstance(stream.wait_error(), exceptions.PermissionDenied)
    with pytest.raises(exceptions.PermissionDenied):
        service.subscriber.subscribe(subscription, callback=print).result(timeout=20)
