"""The descriptors in `protos` against the official package."""

from __future__ import annotations

import pytest
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1 import types

from penstock.pubsub import protos

# The views of a message under another name, or with parts as bytes.
VIEWS = {
    "RawPublishRequest": "PublishRequest",
    "RawReceivedMessage": "ReceivedMessage",
    "RawPullResponse": "PullResponse",
    "MessageHead": "PubsubMessage",
    "PublishRequestHeads": "PublishRequest",
    "MessageData": "PubsubMessage",
    "PublishRequestData": "PublishRequest",
}
NESTED = {
    "AcknowledgeConfirmation": types.StreamingPullResponse.AcknowledgeConfirmation,
    "ModifyAckDeadlineConfirmation": types.StreamingPullResponse.ModifyAckDeadlineConfirmation,
    "SubscriptionProperties": types.StreamingPullResponse.SubscriptionProperties,
}


def _official(name: str) -> object:
    if name.startswith("TestIam"):
        return getattr(iam_policy_pb2, name).DESCRIPTOR
    wrapper = NESTED.get(name) or getattr(types, VIEWS.get(name, name))
    return wrapper.pb().DESCRIPTOR


@pytest.mark.parametrize("name", sorted(protos._MESSAGES))
def test_fields_have_the_official_numbers_and_labels(name: str) -> None:
    official = _official(name).fields_by_name  # type: ignore[attr-defined]
    for field in protos.descriptor(name).fields:
        assert field.number == official[field.name].number, field.name
        assert field.is_repeated == official[field.name].is_repeated, field.name


@pytest.mark.parametrize("name", sorted(protos._MESSAGES))
def test_fields_have_the_official_types_or_are_raw_bytes(name: str) -> None:
    official = _official(name).fields_by_name  # type: ignore[attr-defined]
    for field in protos.descriptor(name).fields:
        expected = official[field.name].type
        is_raw = expected == field.TYPE_MESSAGE and field.type == field.TYPE_BYTES
        assert field.type == expected or is_raw, field.name
