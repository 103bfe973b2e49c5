"""Subscription settings: defaults, limits and changes; runs in the emulator's event loop."""

from __future__ import annotations

from typing import Any

from google.pubsub_v1.types import pubsub as api

from penstock.emulator.pubsub import names
from penstock.emulator.pubsub.backlog import Backlog
from penstock.emulator.pubsub.filter import FilterSyntaxError, compile_filter
from penstock.emulator.pubsub.resources import Subscription
from penstock.emulator.pubsub.rpc import already_exists, invalid
from penstock.emulator.pubsub.store import Store

UPDATABLE = {
    "ack_deadline_seconds",
    "bigquery_config",
    "bigtable_config",
    "cloud_storage_config",
    "dead_letter_policy",
    "enable_exactly_once_delivery",
    "expiration_policy",
    "labels",
    "message_retention_duration",
    "message_transforms",
    "push_config",
    "retain_acked_messages",
    "retry_policy",
}
_DAY = 86400


def create(store: Store, request: Any) -> Subscription:
    """Make a subscription that sees what is published from now on."""
    names.check_name(request.name, "subscriptions")
    names.check_name(request.topic, "topics", "topic")
    if request.name in store.subscriptions:
        raise already_exists(request.name)
    topic = store.topic(request.topic)
    settings = api.Subscription.pb()()
    settings.CopyFrom(request)
    settings.state = api.Subscription.State.ACTIVE
    for output_only in ("detached", "topic_message_retention_duration"):
        settings.ClearField(output_only)
    fill_defaults(settings)
    if topic.settings.HasField("message_retention_duration"):
        settings.topic_message_retention_duration.CopyFrom(
            topic.settings.message_retention_duration
        )
    check(store, settings)
    try:
        matcher = compile_filter(settings.filter)
    except FilterSyntaxError as exc:
        raise invalid("filter", str(exc)) from None
    subscription = Subscription(
        settings=settings,
        log=topic.log,
        backlog=Backlog(topic.log, topic.log.end, bool(settings.enable_message_ordering)),
        uid=store.new_uid(),
        matcher=matcher,
        last_used=store.clock.time(),
    )
    store.subscriptions[settings.name] = subscription
    return subscription


def fill_defaults(settings: Any) -> None:
    """Set what the service sets when the caller leaves it out."""
    if not settings.ack_deadline_seconds:
        settings.ack_deadline_seconds = 60 if settings.enable_exactly_once_delivery else 10
    if not settings.HasField("message_retention_duration"):
        settings.message_retention_duration.FromSeconds(7 * _DAY)
    if not settings.HasField("expiration_policy"):
        settings.expiration_policy.ttl.FromSeconds(31 * _DAY)
    if settings.HasField("retry_policy"):
        policy = settings.retry_policy
        if not policy.HasField("minimum_backoff"):
            policy.minimum_backoff.FromSeconds(10)
        if not policy.HasField("maximum_backoff"):
            policy.maximum_backoff.FromSeconds(600)
    if settings.dead_letter_policy.dead_letter_topic:
        policy = settings.dead_letter_policy
        policy.max_delivery_attempts = policy.max_delivery_attempts or 5


def check(store: Store, settings: Any) -> None:
    """Refuse values that the service refuses."""
    names.check_labels(settings.labels)
    if not 10 <= settings.ack_deadline_seconds <= 600:
        raise invalid(
            "ack_deadline_seconds", f"{settings.ack_deadline_seconds} is not between 10 and 600"
        )
    kept = settings.message_retention_duration.ToSeconds()
    if not 600 <= kept <= 31 * _DAY:
        raise invalid("message_retention_duration", f"{kept}s is not 10m to 31d")
    ttl = settings.expiration_policy.ttl.ToSeconds()
    if ttl and ttl < _DAY:
        raise invalid("expiration_policy.ttl", f"{ttl}s is less than a day")
    _check_dead_letter(store, settings)
    if settings.HasField("retry_policy"):
        policy = settings.retry_policy
        for field in ("minimum_backoff", "maximum_backoff"):
            seconds = getattr(policy, field).ToSeconds()
            if not 0 <= seconds <= 600:
                raise invalid(f"retry_policy.{field}", f"{seconds}s is not between 0 and 600s")
        if policy.minimum_backoff.ToSeconds() > policy.maximum_backoff.ToSeconds():
            raise invalid("retry_policy", "minimum_backoff is greater than maximum_backoff")
    if settings.enable_exactly_once_delivery and settings.push_config.push_endpoint:
        raise invalid("enable_exactly_once_delivery", "is for pull subscriptions only")


def _check_dead_letter(store: Store, settings: Any) -> None:
    policy = settings.dead_letter_policy
    if policy.dead_letter_topic == names.DELETED_TOPIC:
        return
    if policy.dead_letter_topic:
        names.check_name(policy.dead_letter_topic, "topics", "dead_letter_policy.dead_letter_topic")
        store.topic(policy.dead_letter_topic)
        if not 5 <= policy.max_delivery_attempts <= 100:
            raise invalid(
                "dead_letter_policy.max_delivery_attempts",
                f"{policy.max_delivery_attempts} is not between 5 and 100",
            )
    elif policy.max_delivery_attempts:
        raise invalid("dead_letter_policy", "max_delivery_attempts needs a dead_letter_topic")
