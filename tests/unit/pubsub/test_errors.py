"""From gRPC status codes to errors that a person can act on."""

from __future__ import annotations

import pickle

import grpc
import pytest

from penstock.errors import AccessError, PenstockError, ResourceError, WriteRejectedError
from penstock.pubsub.errors import RULES, CallFailed, Resource, service_error, translated

TOPIC = Resource.topic("projects/shop/topics/orders")
SUBSCRIPTION = Resource.subscription("projects/shop/subscriptions/orders-sub")


def test_every_grpc_status_code_has_a_rule() -> None:
    assert set(RULES) == {code.name for code in grpc.StatusCode}


@pytest.mark.parametrize("code", [code.name for code in grpc.StatusCode])
@pytest.mark.parametrize("resource", [TOPIC, SUBSCRIPTION])
def test_every_error_names_object_fact_and_remedy(code: str, resource: Resource) -> None:
    error = service_error(CallFailed(code, "The service says so."), resource)
    assert isinstance(error, PenstockError)
    assert resource.name in error.subject
    assert error.fact == f"{code}: The service says so"
    assert len(error.remedy) > 20
    assert "{" not in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert str(again) == str(error)


def test_a_missing_topic_tells_how_to_create_it() -> None:
    error = service_error(CallFailed("NOT_FOUND", "gone"), TOPIC)
    assert isinstance(error, ResourceError)
    assert "gcloud pubsub topics create orders --project=shop" in str(error)


def test_a_missing_subscription_tells_how_to_create_it() -> None:
    error = service_error(CallFailed("NOT_FOUND", "gone"), SUBSCRIPTION)
    assert "gcloud pubsub subscriptions create orders-sub --project=shop --topic=" in str(error)


def test_a_missing_permission_tells_the_role() -> None:
    error = service_error(CallFailed("PERMISSION_DENIED", "no"), TOPIC)
    assert isinstance(error, AccessError)
    assert "--role=roles/pubsub.publisher" in str(error)
    error = service_error(CallFailed("PERMISSION_DENIED", "no"), SUBSCRIPTION)
    assert "--role=roles/pubsub.subscriber" in str(error)


def test_a_refusal_points_at_schema_and_dead_letter_topic() -> None:
    error = service_error(CallFailed("INVALID_ARGUMENT", "schema"), TOPIC)
    assert isinstance(error, WriteRejectedError)
    assert "deadLetterTopic" in str(error)


def test_long_details_are_one_short_line() -> None:
    error = service_error(CallFailed("INTERNAL", "a\n b " * 1000), TOPIC)
    assert len(error.fact) < 700
    assert "\n" not in str(error)


def test_translated_turns_a_failed_call_into_the_users_error() -> None:
    with pytest.raises(ResourceError) as caught, translated(TOPIC):
        raise CallFailed("NOT_FOUND", "gone")
    assert isinstance(caught.value.__cause__, CallFailed)


def test_translated_leaves_other_errors_alone() -> None:
    with pytest.raises(KeyError), translated(TOPIC):
        raise KeyError
