"""Snapshots and seeking: changing in bulk what is acknowledged; runs in the event loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.pubsub_v1.types import pubsub as api

from penstock.emulator.pubsub import names
from penstock.emulator.pubsub.columns import Positions
from penstock.emulator.pubsub.ordering import Mask
from penstock.emulator.pubsub.resources import Snapshot, Subscription
from penstock.emulator.pubsub.rpc import already_exists, failed_precondition, invalid
from penstock.emulator.pubsub.store import Store

_LONGEST_SECONDS, _SHORTEST_SECONDS = 7 * 86400, 3600


def create_snapshot(store: Store, request: Any) -> Any:
    """Keep what a subscription has not acknowledged, and all that is published from now on."""
    names.check_name(request.name, "snapshots")
    names.check_labels(request.labels)
    if request.name in store.snapshots:
        raise already_exists(request.name)
    subscription = store.subscription(request.subscription)
    if subscription.settings.detached or subscription.settings.topic == names.DELETED_TOPIC:
        raise failed_precondition("The subscription has no topic any more.")
    backlog = subscription.backlog
    low = backlog.done_before
    unacked = backlog.unacked_mask(low, backlog.end)
    now = store.clock.time()
    age = 0.0
    if unacked.any():
        oldest = low + int(np.argmax(unacked))
        age = now - float(subscription.log.times_us[np.array([oldest])][0]) / 1e6
    left = _LONGEST_SECONDS - age
    if left < _SHORTEST_SECONDS:
        raise failed_precondition(
            "The snapshot would expire in less than an hour: it lives 7 days less the age of the "
            "oldest unacknowledged message."
        )
    settings = api.Snapshot.pb()(name=request.name, topic=subscription.settings.topic)
    settings.labels.update(request.labels)
    settings.expire_time.FromMicroseconds(int((now + left) * 1e6))
    store.snapshots[request.name] = Snapshot(settings, subscription.log, low, unacked)
    return settings


def seek(store: Store, request: Any) -> None:
    """Seek a subscription to a time or to a snapshot."""
    subscription = store.subscription(request.subscription)
    if subscription.settings.detached:
        raise failed_precondition("The subscription is detached.")
    target = request.WhichOneof("target")
    if target is None:
        raise invalid("target", "neither time nor snapshot is set")
    if target == "snapshot":
        snapshot = store.snapshot(request.snapshot)
        if snapshot.log is not subscription.log:
            raise invalid("snapshot", "it was taken of a subscription of another topic")
        low = snapshot.low
        kept = subscription.log.kept_positions(low, subscription.log.end)
        wanted = np.ones(len(kept), np.bool_)
        early = kept < snapshot.end
        wanted[early] = snapshot.unacked[kept[early] - low]
    else:
        low = subscription.log.find_time(request.time.ToNanoseconds() // 1000)
        kept = subscription.log.kept_positions(low, subscription.log.end)
        wanted = _is_retained(store, subscription, kept)
    wanted &= subscription.match_stored(kept)
    mask = np.zeros(subscription.log.end - low, np.bool_)
    mask[kept[wanted] - low] = True
    subscription.backlog.seek(mask, low)
    subscription.notify()


def _is_retained(store: Store, subscription: Subscription, kept: Positions) -> Mask:
    """Tell which stored messages this subscription has a right to.

    Others may be stored for another subscription's sake, or because nobody has swept yet: whether
    an acknowledged message comes back must not depend on that.
    """
    log, backlog, settings = subscription.log, subscription.backlog, subscription.settings
    now = store.clock.time()
    low = backlog.done_before
    retained = np.zeros(len(kept), np.bool_)
    inside = kept >= low
    retained[inside] = backlog.unacked_mask(low, log.end)[kept[inside] - low]
    if settings.retain_acked_messages:
        oldest = log.find_time(int((now - settings.message_retention_duration.ToSeconds()) * 1e6))
        retained |= kept >= max(oldest, backlog.first)
    topic_retention = settings.topic_message_retention_duration.ToSeconds()
    if topic_retention:
        retained |= kept >= log.find_time(int((now - topic_retention) * 1e6))
    return retained
