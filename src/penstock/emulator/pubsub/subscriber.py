"""google.pubsub.v1.Subscriber but for StreamingPull; runs in the emulator's event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub as api

from penstock.emulator.pubsub import acks, names, replay, subscriptions, wire
from penstock.emulator.pubsub.backlog import NO_STREAM
from penstock.emulator.pubsub.paging import page
from penstock.emulator.pubsub.publisher import merge_masked
from penstock.emulator.pubsub.resources import Subscription
from penstock.emulator.pubsub.rpc import invalid, not_found
from penstock.emulator.pubsub.store import Store

# How long a Pull without messages waits. The service's own time is not documented.
PULL_WAIT_SECONDS = 5.0


class SubscriberService:
    """The unary methods of the Subscriber."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create_subscription(self, request: Any) -> Any:
        """CreateSubscription."""
        return subscriptions.create(self._store, request).settings

    def get_subscription(self, request: Any) -> Any:
        """GetSubscription."""
        names.check_name(request.subscription, "subscriptions", "subscription")
        return self._store.subscription(request.subscription).settings

    def update_subscription(self, request: Any) -> Any:
        """UpdateSubscription."""
        subscription = self._store.subscription(request.subscription.name)
        updated = merge_masked(
            subscription.settings,
            request.subscription,
            request.update_mask,
            subscriptions.UPDATABLE,
        )
        subscriptions.fill_defaults(updated)
        subscriptions.check(self._store, updated)
        subscription.settings = updated
        subscription.notify()
        return updated

    def modify_push_config(self, request: Any) -> Any:
        """ModifyPushConfig."""
        subscription = self._store.subscription(request.subscription)
        updated = type(subscription.settings)()
        updated.CopyFrom(subscription.settings)
        updated.push_config.CopyFrom(request.push_config)
        subscriptions.check(self._store, updated)
        subscription.settings = updated
        subscription.notify()
        return empty_pb2.Empty()

    def list_subscriptions(self, request: Any) -> Any:
        """ListSubscriptions."""
        names.check_project(request.project)
        found = [
            subscription.settings
            for name, subscription in sorted(self._store.subscriptions.items())
            if name.startswith(request.project + "/")
        ]
        items, token = page(found, request.page_size, request.page_token)
        return api.ListSubscriptionsResponse.pb()(subscriptions=items, next_page_token=token)

    def delete_subscription(self, request: Any) -> Any:
        """DeleteSubscription."""
        self._store.delete_subscription(self._store.subscription(request.subscription))
        return empty_pb2.Empty()

    async def pull(self, payload: bytes) -> bytes:
        """Pull, from wire bytes to wire bytes; waits a while for the first message."""
        request = wire.parse(api.PullRequest.pb(), payload)
        if request.max_messages < 1:
            raise invalid("max_messages", f"{request.max_messages} is not positive")
        subscription = self._store.pullable(request.subscription)
        found = self._lease(subscription, request.max_messages)
        if found or request.return_immediately:
            return found
        waiter = asyncio.Event()
        subscription.waiters.append(waiter)
        try:
            async with asyncio.timeout(PULL_WAIT_SECONDS):
                while not found:
                    await waiter.wait()
                    waiter.clear()
                    if subscription.is_deleted:
                        raise not_found(subscription.name)
                    self._store.pullable(subscription.name)
                    found = self._lease(subscription, request.max_messages)
        except TimeoutError:
            pass
        finally:
            subscription.waiters.remove(waiter)
        return found

    def _lease(self, subscription: Subscription, most: int) -> bytes:
        deadline = subscription.settings.ack_deadline_seconds
        return self._store.lease(subscription, NO_STREAM, deadline, most)

    def acknowledge(self, payload: bytes) -> bytes:
        """Acknowledge, from wire bytes."""
        acks.check_size(payload)
        request = wire.decode("AcknowledgeRequest", payload)
        subscription = self._store.pullable(request["subscription"][0].as_py())
        ids = request["ack_ids"].flatten()
        if not len(ids):
            raise invalid("ack_ids", "No ack ids specified.")
        outcome = acks.acknowledge(self._store, subscription, ids, "Acknowledge")
        return _answer(subscription, outcome)

    def modify_ack_deadline(self, payload: bytes) -> bytes:
        """ModifyAckDeadline, from wire bytes."""
        acks.check_size(payload)
        request = wire.decode("ModifyAckDeadlineRequest", payload)
        subscription = self._store.pullable(request["subscription"][0].as_py())
        ids = request["ack_ids"].flatten()
        if not len(ids):
            raise invalid("ack_ids", "No ack ids specified.")
        seconds = np.full(len(ids), request["ack_deadline_seconds"][0].as_py(), np.int32)
        outcome = acks.modify_deadline(self._store, subscription, ids, seconds, "ModifyAckDeadline")
        return _answer(subscription, outcome)

    def create_snapshot(self, request: Any) -> Any:
        """CreateSnapshot."""
        return replay.create_snapshot(self._store, request)

    def get_snapshot(self, request: Any) -> Any:
        """GetSnapshot."""
        return self._store.snapshot(request.snapshot).settings

    def update_snapshot(self, request: Any) -> Any:
        """UpdateSnapshot."""
        snapshot = self._store.snapshot(request.snapshot.name)
        updated = merge_masked(
            snapshot.settings, request.snapshot, request.update_mask, {"labels", "expire_time"}
        )
        names.check_labels(updated.labels)
        snapshot.settings = updated
        return updated

    def list_snapshots(self, request: Any) -> Any:
        """ListSnapshots."""
        names.check_project(request.project)
        found = [
            snapshot.settings
            for name, snapshot in sorted(self._store.snapshots.items())
            if name.startswith(request.project + "/")
        ]
        items, token = page(found, request.page_size, request.page_token)
        return api.ListSnapshotsResponse.pb()(snapshots=items, next_page_token=token)

    def delete_snapshot(self, request: Any) -> Any:
        """DeleteSnapshot."""
        self._store.snapshot(request.snapshot)
        del self._store.snapshots[request.snapshot]
        return empty_pb2.Empty()

    def seek(self, request: Any) -> Any:
        """Seek, to a time or to a snapshot."""
        replay.seek(self._store, request)
        return api.SeekResponse.pb()()


def _answer(subscription: Subscription, outcome: acks.AckOutcome) -> bytes:
    if subscription.is_exactly_once:
        error = outcome.error()
        if error is not None:
            raise error
    return b""
