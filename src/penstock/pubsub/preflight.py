"""Questions to the service before a job starts; runs on the driver.

A definite no becomes an error that a person can act on, at once. No answer is not a no: the job
starts, and its tasks ride out what passes. Every call is bounded; nothing is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pyarrow as pa

from penstock.errors import AccessError, ResourceError
from penstock.pubsub.client import (
    GET_SUBSCRIPTION,
    GET_TOPIC,
    TEST_IAM_PERMISSIONS,
    Client,
)
from penstock.pubsub.encoding import encode, parse
from penstock.pubsub.errors import CallFailed, Resource, service_error
from penstock.retry import is_transient

_LOG = logging.getLogger(__name__)
TIMEOUT_SECONDS = 5.0
# The least that a subscription can have.
_LEAST_ACK_DEADLINE_SECONDS = 10

# The setting that makes a subscription something else than a pull subscription.
_OTHER_TYPES = (
    ("push_config", "push_endpoint", "push"),
    ("bigquery_config", "table", "BigQuery"),
    ("cloud_storage_config", "bucket", "Cloud Storage"),
    ("bigtable_config", "table", "Bigtable"),
)


def check_topics(client: Client, topics: Iterable[str]) -> None:
    """Check that the topics exist and that we may publish to them.

    Raises:
        PenstockError: one does not exist, or publishing is not permitted.
    """
    for topic in topics:
        resource = Resource.topic(topic)
        request = encode("GetTopicRequest", pa.record_batch({"topic": [topic]}))
        try:
            client.call(GET_TOPIC, topic, request, TIMEOUT_SECONDS)
        except CallFailed as failure:
            if not _is_hidden(failure, resource):
                continue
        _check_permission(client, resource, "pubsub.topics.publish")


def check_subscription(client: Client, subscription: str) -> int:
    """Check that a subscription can be pulled from; give its ack deadline in seconds.

    Raises:
        PenstockError: it does not exist, is not of the pull type, or we may not pull.
    """
    resource = Resource.subscription(subscription)
    request = encode("GetSubscriptionRequest", pa.record_batch({"subscription": [subscription]}))
    ack_deadline = 0
    try:
        response = client.call(GET_SUBSCRIPTION, subscription, request, TIMEOUT_SECONDS)
        ack_deadline = _check_pullable(resource, parse("Subscription", response))
    except CallFailed as failure:
        if not _is_hidden(failure, resource):
            return _LEAST_ACK_DEADLINE_SECONDS
    _check_permission(client, resource, "pubsub.subscriptions.consume")
    return max(_LEAST_ACK_DEADLINE_SECONDS, ack_deadline)


def _check_pullable(resource: Resource, facts: pa.RecordBatch) -> int:
    row = facts.to_pylist()[0]
    fact = None
    if row["detached"]:
        fact = "it is detached from its topic, and holds no messages any more"
    for config, key, kind in _OTHER_TYPES:
        if row[config] and row[config][key]:
            fact = f"it is of the {kind} type, and only a pull subscription can be read"
    if fact is not None:
        raise ResourceError(
            "NOT_PULLABLE",
            f"Subscription '{resource.name}'",
            fact,
            "Create a pull subscription of the same topic and read that: "
            + resource.words()["create"].replace(resource.name.split("/")[-1], "NAME", 1),
        )
    return int(row["ack_deadline_seconds"])


def _check_permission(client: Client, resource: Resource, permission: str) -> None:
    request = pa.record_batch({"resource": [resource.name], "permissions": [[permission]]})
    payload = encode("TestIamPermissionsRequest", request)
    try:
        answer = client.call(TEST_IAM_PERMISSIONS, resource.name, payload, TIMEOUT_SECONDS)
    except CallFailed as failure:
        # Emulators and restricted networks may not offer this method; the first real call tells.
        _LOG.debug("cannot test %s on %s: %s", permission, resource.name, failure.code)
        return
    if permission not in parse("TestIamPermissionsResponse", answer)["permissions"][0].as_py():
        raise AccessError(
            "PERMISSION_DENIED",
            f"{resource.kind.capitalize()} '{resource.name}'",
            f"the account that runs the query lacks {permission}",
            f"Grant it: {resource.words()['grant']}",
        )


def _is_hidden(failure: CallFailed, resource: Resource) -> bool:
    """Tell whether the resource may well be there, but not for us to look at.

    Publishing and pulling need no permission to look. False means that the service does not
    answer now, and need not be asked more.
    """
    if failure.code == "PERMISSION_DENIED":
        return True
    if not is_transient(failure.code):
        raise service_error(failure, resource) from failure
    _LOG.warning("cannot look at %s before the start: %s", resource.name, failure.code)
    return False
