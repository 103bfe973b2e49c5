"""The subscription around a query: made, checked, moved, deleted; runs on the driver."""

from __future__ import annotations

import logging

from google.protobuf import timestamp_pb2
from google.pubsub_v1.types import pubsub as api

from penstock.pubsub.client import (
    CREATE_SUBSCRIPTION,
    DELETE_SUBSCRIPTION,
    GET_SUBSCRIPTION,
    SEEK,
    Client,
)
from penstock.pubsub.errors import CallFailed, Resource, service_error, translated
from penstock.pubsub.preflight import TIMEOUT_SECONDS, check_subscription
from penstock.pubsub.source.options import PubSubSourceOptions

_LOG = logging.getLogger(__name__)
_ACK_DEADLINE_SECONDS = 60


def prepare(client: Client, options: PubSubSourceOptions) -> bool:
    """Create the subscription if it is missing and a topic is given; check that it can be pulled.

    Returns whether it keeps the order of ordering keys.

    Raises:
        PenstockError: it cannot be read from, or cannot be created.
    """
    name = options.subscription
    if options.topic is not None:
        _create(client, name, options.topic)
    check_subscription(client, name)
    request = api.GetSubscriptionRequest.serialize(api.GetSubscriptionRequest(subscription=name))
    try:
        answer = client.call(GET_SUBSCRIPTION, name, request, TIMEOUT_SECONDS)
    except CallFailed:
        # Not permitted to look, or not reachable right now. Keeping order costs little.
        return True
    return bool(api.Subscription.deserialize(answer).enable_message_ordering)


def _create(client: Client, name: str, topic: str) -> None:
    request = api.Subscription(name=name, topic=topic, ack_deadline_seconds=_ACK_DEADLINE_SECONDS)
    try:
        client.call(CREATE_SUBSCRIPTION, name, api.Subscription.serialize(request), TIMEOUT_SECONDS)
    except CallFailed as failure:
        # Without the permission to create one, an existing one is as good: the check tells.
        if failure.code not in ("ALREADY_EXISTS", "PERMISSION_DENIED"):
            raise service_error(failure, Resource.topic(topic)) from failure
    else:
        _LOG.info("created %s on %s", name, topic)


def seek_to_start(client: Client, options: PubSubSourceOptions) -> None:
    """Move a query's first start to its starting position; a restart goes on where it was.

    Raises:
        PenstockError: the service refused.
    """
    if options.starting_position == "none":
        return
    request = api.SeekRequest.pb()(subscription=options.subscription)
    if options.starting_position == "snapshot":
        request.snapshot = options.snapshot
    else:
        # The first second of the epoch is before any message that is retained.
        moment = timestamp_pb2.Timestamp(seconds=1)
        if options.starting_position == "timestamp":
            moment.FromDatetime(options.starting_time)
        request.time.CopyFrom(moment)
    with translated(Resource.subscription(options.subscription)):
        client.call(SEEK, options.subscription, request.SerializeToString(), TIMEOUT_SECONDS)


def delete(client: Client, subscription: str) -> None:
    """Delete the subscription; failing to is not worth an error at the end of a query."""
    request = api.DeleteSubscriptionRequest(subscription=subscription)
    payload = api.DeleteSubscriptionRequest.serialize(request)
    try:
        client.call(DELETE_SUBSCRIPTION, subscription, payload, TIMEOUT_SECONDS)
    except CallFailed as failure:
        _LOG.warning("cannot delete %s: %s", subscription, failure.code)
