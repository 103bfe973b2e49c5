"""What the driver asks before a job starts, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1 import types

from penstock.errors import AccessError, ConnectError, ResourceError
from penstock.pubsub.errors import CallFailed
from penstock.pubsub.preflight import check_subscription, check_topics
from tests.support.scripted_client import ScriptedClient

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders-sub"
Subscription = types.Subscription.pb()


def fails(code: str) -> Callable[..., bytes]:
    def answer(*_: Any) -> bytes:
        raise CallFailed(code, "told to")

    return answer


def grants(*permissions: str) -> Callable[..., bytes]:
    response = iam_policy_pb2.TestIamPermissionsResponse(permissions=permissions)
    return lambda *_: bytes(response.SerializeToString())


def grants_all(payload: bytes, timeout: float) -> bytes:
    asked = iam_policy_pb2.TestIamPermissionsRequest.FromString(payload)
    assert asked.resource
    response = iam_policy_pb2.TestIamPermissionsResponse(permissions=asked.permissions)
    return bytes(response.SerializeToString())


def client(**answers: Any) -> ScriptedClient:
    given = {"GetTopic": lambda *_: b"", "TestIamPermissions": grants_all, **answers}
    return ScriptedClient(answers=given)


def test_a_topic_that_exists_and_may_be_published_to_passes() -> None:
    asked = client()
    check_topics(asked, [TOPIC, "projects/p/topics/refused"])
    assert asked.names() == ["GetTopic", "TestIamPermissions"] * 2
    request = types.GetTopicRequest.pb().FromString(asked.calls[0][2])
    assert request.topic == TOPIC
    assert all(timeout <= 5.0 for *_, timeout in asked.calls)


def test_a_missing_topic_is_an_error() -> None:
    with pytest.raises(ResourceError, match="topics create orders"):
        check_topics(client(GetTopic=fails("NOT_FOUND")), [TOPIC])


def test_permission_to_publish_is_enough_without_permission_to_look() -> None:
    check_topics(client(GetTopic=fails("PERMISSION_DENIED")), [TOPIC])


def test_a_lacking_permission_to_publish_is_an_error() -> None:
    with pytest.raises(AccessError, match=r"lacks pubsub\.topics\.publish.*roles/pubsub.publisher"):
        check_topics(client(TestIamPermissions=grants()), [TOPIC])


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "PERMISSION_DENIED", "UNAVAILABLE"])
def test_a_service_that_cannot_tell_permissions_passes(code: str) -> None:
    check_topics(client(TestIamPermissions=fails(code)), [TOPIC])


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"])
def test_a_service_that_does_not_answer_now_passes_because_tasks_ride_it_out(code: str) -> None:
    check_topics(client(GetTopic=fails(code), TestIamPermissions=fails(code)), [TOPIC])


@pytest.mark.parametrize(
    ("code", "error"), [("UNAUTHENTICATED", AccessError), ("UNIMPLEMENTED", ConnectError)]
)
def test_a_definite_no_is_an_error(code: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_topics(client(GetTopic=fails(code)), [TOPIC])


def subscription(**fields: Any) -> Callable[..., bytes]:
    made = Subscription(name=SUBSCRIPTION, topic=TOPIC, **fields)
    return lambda *_: bytes(made.SerializeToString())


def test_a_pull_subscription_passes_and_gives_its_ack_deadline() -> None:
    asked = client(GetSubscription=subscription(ack_deadline_seconds=42))
    assert check_subscription(asked, SUBSCRIPTION) == 42
    assert asked.names() == ["GetSubscription", "TestIamPermissions"]


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"detached": True}, "detached"),
        ({"push_config": {"push_endpoint": "https://x"}}, "push type"),
        ({"bigquery_config": {"table": "a.b.c"}}, "BigQuery type"),
        ({"cloud_storage_config": {"bucket": "b"}}, "Cloud Storage type"),
        ({"bigtable_config": {"table": "t"}}, "Bigtable type"),
    ],
)
def test_a_subscription_that_cannot_be_pulled_is_an_error(
    fields: dict[str, Any], fact: str
) -> None:
    with pytest.raises(ResourceError, match=fact):
        check_subscription(client(GetSubscription=subscription(**fields)), SUBSCRIPTION)


def test_a_missing_subscription_is_an_error() -> None:
    with pytest.raises(ResourceError, match="subscriptions create orders-sub"):
        check_subscription(client(GetSubscription=fails("NOT_FOUND")), SUBSCRIPTION)


def test_permission_to_pull_is_enough_without_permission_to_look_at_the_subscription() -> None:
    asked = client(GetSubscription=fails("PERMISSION_DENIED"))
    assert check_subscription(asked, SUBSCRIPTION) == 10


def test_a_lacking_permission_to_pull_is_an_error() -> None:
    asked = client(GetSubscription=subscription(), TestIamPermissions=grants("pubsub.topics.get"))
    with pytest.raises(AccessError, match=r"lacks pubsub\.subscriptions\.consume"):
        check_subscription(asked, SUBSCRIPTION)
