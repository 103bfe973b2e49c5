"""The emulator's state and what happens to messages in it; runs in its event loop, no I/O.

One thread, one event loop: no locks. Every method runs to its end before another call is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._core.clock import Clock
from penstock.emulator.pubsub import wire
from penstock.emulator.pubsub.backlog import NO_STREAM, Lease
from penstock.emulator.pubsub.columns import Positions
from penstock.emulator.pubsub.faults import FaultPlan
from penstock.emulator.pubsub.names import DELETED_TOPIC
from penstock.emulator.pubsub.publishing import check_limits
from penstock.emulator.pubsub.resources import Snapshot, Subscription, Topic
from penstock.emulator.pubsub.rpc import failed_precondition, not_found
from penstock.emulator.pubsub.schema_store import SchemaStore

# The service's ids are decimal numbers too; the first has 17 digits, so that all have.
_FIRST_MESSAGE_ID = 10**16
RESPONSE_MESSAGES = 1000
RESPONSE_BYTES = 8 * 2**20


class Store:
    """All topics, subscriptions, snapshots and schemas, and the messages in them."""

    def __init__(self, clock: Clock, seed: int = 0) -> None:
        self.clock = clock
        self.faults = FaultPlan(seed)
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.schemas = SchemaStore(clock)
        self.calls: dict[str, int] = {}
        self.denied: set[tuple[str, str]] = set()
        self._next_message_id = _FIRST_MESSAGE_ID
        self._next_uid = 1
        self._next_stream = NO_STREAM + 1

    def topic(self, name: str) -> Topic:
        """Find a topic or fail with NOT_FOUND."""
        if name not in self.topics:
            raise not_found(name)
        return self.topics[name]

    def subscription(self, name: str) -> Subscription:
        """Find a subscription or fail with NOT_FOUND."""
        if name not in self.subscriptions:
            raise not_found(name)
        return self.subscriptions[name]

    def pullable(self, name: str) -> Subscription:
        """Find a subscription that messages can be pulled from."""
        subscription = self.subscription(name)
        if subscription.settings.detached:
            raise failed_precondition(f"Subscription is detached (resource={name}).")
        for kind in ("push_config", "bigquery_config", "cloud_storage_config", "bigtable_config"):
            settings = subscription.settings
            if settings.HasField(kind) and getattr(settings, kind).ByteSize():
                raise failed_precondition(
                    f"This method is not supported for this subscription type ({kind} is set, "
                    f"resource={name})."
                )
        subscription.last_used = self.clock.time()
        return subscription

    def subscribers(self, topic: Topic) -> list[Subscription]:
        """List the subscriptions attached to a topic."""
        return [
            subscription
            for subscription in self.subscriptions.values()
            if subscription.log is topic.log and not subscription.settings.detached
        ]

    def new_uid(self) -> int:
        """Number a subscription; the number is part of its ack ids, so it is never used again."""
        self._next_uid += 1
        return self._next_uid

    def new_stream(self) -> int:
        """Number a stream."""
        self._next_stream += 1
        return self._next_stream

    def publish(self, request: wire.PublishedMessages) -> pa.StringArray:
        """Accept the messages of one request; returns their ids."""
        topic = self.topic(request.topic)
        check_limits(request)
        messages = request.messages
        added = self.schemas.check(topic.settings.schema_settings, request)
        if added:
            messages = wire.append_to_each(messages, added)
        return self._append(topic, messages, request.heads)

    def _append(
        self, topic: Topic, messages: pa.BinaryArray, heads: pa.StructArray
    ) -> pa.StringArray:
        ids = wire.message_ids(self._next_message_id, len(messages))
        topic.log.append(
            messages,
            heads.field("ordering_key"),
            self._next_message_id,
            int(self.clock.time() * 1e6),
        )
        self._next_message_id += len(messages)
        topic.published += len(messages)
        topic.published_bytes += messages.nbytes
        attributes = heads.field("attributes")
        for subscription in self.subscribers(topic):
            if subscription.backlog.extend(subscription.match_published(attributes)):
                subscription.notify()
        return ids

    def lease(
        self,
        subscription: Subscription,
        stream: int,
        deadline_seconds: float,
        most: int = RESPONSE_MESSAGES,
        most_bytes: int = RESPONSE_BYTES,
    ) -> bytes:
        """Lease ready messages and encode them; empty when there are none."""
        until = self.clock.monotonic() + deadline_seconds
        backlog = subscription.backlog
        lease = backlog.lease(
            min(most, RESPONSE_MESSAGES), min(most_bytes, RESPONSE_BYTES), until, stream
        )
        if not len(lease.positions):
            return b""
        return self._encode(subscription, lease)

    def _encode(self, subscription: Subscription, lease: Lease) -> bytes:
        log = subscription.log
        delivery = wire.Delivery(
            uid=subscription.uid,
            messages=log.take(lease.positions),
            ids=log.ids[lease.positions],
            times_us=log.times_us[lease.positions],
            positions=lease.positions,
            attempts=lease.attempts,
        )
        has_attempts = bool(subscription.settings.dead_letter_policy.dead_letter_topic)
        encoded = wire.encode_received(delivery, with_attempts=has_attempts)
        if self.faults and self.faults.draw("duplicate", "*"):
            # Repeated fields append: the same bytes twice are the same messages twice.
            encoded += encoded
        return encoded

    def give_back(self, subscription: Subscription, positions: Positions) -> None:
        """Return unacknowledged messages: dead-letter them, hold them back, or ready them."""
        backlog = subscription.backlog
        positions = backlog.give_back(positions)
        policy = subscription.settings.dead_letter_policy
        if policy.dead_letter_topic:
            spent = backlog.attempts(positions) >= (policy.max_delivery_attempts or 5)
            if self._dead_letter(subscription, positions[spent]):
                positions = positions[~spent]
        if subscription.settings.HasField("retry_policy") and len(positions):
            backlog.hold(positions, self._retry_times(subscription, positions))
        subscription.notify()

    def _retry_times(
        self, subscription: Subscription, positions: Positions
    ) -> npt.NDArray[np.float64]:
        policy = subscription.settings.retry_policy
        shortest = policy.minimum_backoff.ToNanoseconds() / 1e9
        longest = policy.maximum_backoff.ToNanoseconds() / 1e9
        # Bounded exponent: 2.0**1100 overflows.
        doublings = np.minimum(subscription.backlog.attempts(positions) - 1, 60)
        waits: npt.NDArray[np.float64] = np.minimum(shortest * 2.0**doublings, longest)
        return waits + self.clock.monotonic()

    def _dead_letter(self, subscription: Subscription, positions: Positions) -> bool:
        """Forward spent messages; False (they stay) if the dead-letter topic is gone."""
        topic = self.topics.get(subscription.settings.dead_letter_policy.dead_letter_topic)
        if topic is None or not len(positions):
            return False
        messages = subscription.log.take(positions)
        times = subscription.log.times_us[positions]
        project, _, short = subscription.name.removeprefix("projects/").partition("/subscriptions/")
        attempts = subscription.backlog.attempts(positions)
        for at, position in enumerate(positions):
            published = np.datetime64(int(times[at]), "us")
            extra = wire.encode_map_entries(
                {
                    "CloudPubSubDeadLetterSourceDeliveryCount": str(attempts[at]),
                    "CloudPubSubDeadLetterSourceSubscription": short,
                    "CloudPubSubDeadLetterSourceSubscriptionProject": project,
                    "CloudPubSubDeadLetterSourceTopicPublishTime": f"{published}+00:00",
                }
            )
            message = pa.array([messages[at].as_py() + extra], pa.binary())
            self._append(topic, message, wire.decode_heads(message))
            subscription.backlog.ack(np.array([position]))
        subscription.backlog.counters.acked -= len(positions)
        subscription.backlog.counters.dead_lettered += len(positions)
        return True

    def expire(self) -> None:
        """End leases and backoffs whose time has come."""
        now = self.clock.monotonic()
        for subscription in list(self.subscriptions.values()):
            backlog = subscription.backlog
            expired = backlog.expired(now)
            if len(expired):
                backlog.counters.expired += len(expired)
                self.give_back(subscription, expired)
            if backlog.wake(now):
                subscription.notify()

    def sweep(self) -> None:
        """Apply retention and expiration, and free messages that nobody needs any more."""
        now = self.clock.time()
        for snapshot in [s for s in self.snapshots.values() if _seconds(s) <= now]:
            del self.snapshots[snapshot.settings.name]
        for subscription in list(self.subscriptions.values()):
            ttl = subscription.settings.expiration_policy.ttl.ToSeconds()
            if ttl and not subscription.waiters and subscription.last_used + ttl <= now:
                self.delete_subscription(subscription)
                continue
            kept = subscription.settings.message_retention_duration.ToSeconds()
            oldest = subscription.log.find_time(int((now - kept) * 1e6))
            subscription.backlog.drop_before(oldest)
            subscription.backlog.trim()
        for topic in self.topics.values():
            self._release(topic.log, self._users(topic.log), self._retained_from(topic))
        orphans = {id(s.log): s.log for s in self.subscriptions.values()}
        for topic in self.topics.values():
            orphans.pop(id(topic.log), None)
        for log in orphans.values():
            self._release(log, self._users(log), log.end)

    def _users(self, log: Any) -> list[Subscription]:
        return [s for s in self.subscriptions.values() if s.log is log]

    def _retained_from(self, topic: Topic) -> int:
        kept = topic.settings.message_retention_duration.ToSeconds()
        if not kept:
            return topic.log.end
        return topic.log.find_time(int((self.clock.time() - kept) * 1e6))

    def _release(self, log: Any, users: Iterable[Subscription], retained_from: int) -> None:
        now = self.clock.time()
        holders = [s for s in self.snapshots.values() if s.log is log]
        retainers = [s for s in users if s.settings.retain_acked_messages]
        for subscription in retainers:
            kept = subscription.settings.message_retention_duration.ToSeconds()
            retained_from = min(retained_from, log.find_time(int((now - kept) * 1e6)))
        oldest = [s.backlog.oldest_unacked for s in users] + [s.low for s in holders]
        keep_from = min([retained_from, *oldest])

        def is_needed(low: int, high: int) -> bool:
            return (
                high > retained_from
                or any(s.needs(low, high) for s in holders)
                or any(s.backlog.needs(low, high) for s in users)
            )

        log.release(keep_from, is_needed)

    def delete_topic(self, topic: Topic) -> None:
        """Remove a topic; its subscriptions keep what they have."""
        del self.topics[topic.name]
        for subscription in self._users(topic.log):
            subscription.settings.topic = DELETED_TOPIC

    def delete_subscription(self, subscription: Subscription) -> None:
        """Remove a subscription and end its streams."""
        del self.subscriptions[subscription.name]
        subscription.is_deleted = True
        subscription.notify()


def _seconds(snapshot: Snapshot) -> float:
    return float(snapshot.settings.expire_time.ToNanoseconds() / 1e9)
