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
from penstock.emulator.pubsub.names import DELETED_TOPIC, check_name
from penstock.emulator.pubsub.publishing import check_limits
from penstock.emulator.pubsub.resources import Snapshot, Subscription, Topic
from penstock.emulator.pubsub.rpc import failed_precondition, not_found
from penstock.emulator.pubsub.schema_store import SchemaStore

# The service's ids are decimal numbers too; the first has 17 digits, so that all have.
_FIRST_MESSAGE_ID = 10**16
RESPONSE_MESSAGES = 1000
# With PUBSUB_EMULATOR_HOST the official clients make a channel without options, and that takes
# 4 MiB at most. What is added to 1000 messages is less than the difference.
RESPONSE_BYTES = 3 * 2**20


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
            check_name(name, "topics", "topic")
            raise not_found(name)
        return self.topics[name]

    def subscription(self, name: str) -> Subscription:
        """Find a subscription or fail with NOT_FOUND; an operation on it keeps it from expiring."""
        if name not in self.subscriptions:
            check_name(name, "subscriptions", "subscription")
            raise not_found(name)
        subscription = self.subscriptions[name]
        subscription.last_used = self.clock.time()
        return subscription

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
        return subscription

    def snapshot(self, name: str) -> Snapshot:
        """Find a snapshot or fail with NOT_FOUND."""
        if name not in self.snapshots:
            check_name(name, "snapshots", "snapshot")
            raise not_found(name)
        return self.snapshots[name]

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
        messages, heads = request.messages, request.heads
        added = self.schemas.check(topic.settings.schema_settings, request)
        if added is not None:
            messages = wire.append_to_each(messages, added)
            heads = wire.decode_heads(messages)
        return self._append(topic, messages, heads)

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
        topic.published_bytes += messages.total_values_length
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
        most: int,
        most_bytes: int = RESPONSE_BYTES,
    ) -> bytes:
        """Lease ready messages and encode them; empty when there are none."""
        until = self.clock.monotonic() + deadline_seconds
        # While faults are in force the messages may have to be in a response twice.
        room = RESPONSE_BYTES // 2 if self.faults else RESPONSE_BYTES
        lease = subscription.backlog.lease(
            min(most, RESPONSE_MESSAGES), min(most_bytes, room), until, stream
        )
        if not len(lease.positions):
            return b""
        encoded = self._encode(subscription, lease)
        method = "Pull" if stream == NO_STREAM else "StreamingPull"
        if self.faults and self.faults.draw("duplicate", method):
            # Repeated fields append: the same bytes twice are the same messages twice.
            encoded += encoded
        return encoded

    def _encode(self, subscription: Subscription, lease: Lease) -> bytes:
        log = subscription.log
        delivery = wire.Delivery(
            uid=subscription.uid,
            messages=log.take(lease.positions),
            ids=log.ids[lease.positions],
            times_us=log.times_us[lease.positions],
            positions=lease.positions,
            attempts=lease.attempts,
            tokens=lease.tokens,
        )
        has_attempts = bool(subscription.settings.dead_letter_policy.dead_letter_topic)
        return wire.encode_received(delivery, with_attempts=has_attempts)

    def give_back(self, subscription: Subscription, positions: Positions) -> None:
        """Return unacknowledged messages: dead-letter them, hold them back, or ready them."""
        backlog = subscription.backlog
        # Exactly-once delivery never repeats what was acknowledged.
        positions = backlog.give_back(positions, with_acked=not subscription.is_exactly_once)
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
        times = subscription.log.times_us[positions]
        project, _, short = subscription.name.removeprefix("projects/").partition("/subscriptions/")
        attempts = subscription.backlog.attempts(positions)
        for at in range(len(positions)):
            published = np.datetime64(int(times[at]), "us")
            extra = wire.encode_map_entries(
                {
                    "CloudPubSubDeadLetterSourceDeliveryCount": str(attempts[at]),
                    "CloudPubSubDeadLetterSourceSubscription": short,
                    "CloudPubSubDeadLetterSourceSubscriptionProject": project,
                    "CloudPubSubDeadLetterSourceTopicPublishTime": f"{published}+00:00",
                }
            )
            stored = subscription.log.take(positions[at : at + 1])
            message = wire.append_to_each(stored, extra)
            self._append(topic, message, wire.decode_heads(message))
        subscription.backlog.give_up(positions)
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
            if subscription.backlog.drop_before(oldest):
                subscription.notify()
            subscription.backlog.trim()
        for topic in self.topics.values():
            self._release(topic.log, self._users(topic.log), self._retained_from(topic))
        orphans = {id(s.log): s.log for s in self.subscriptions.values()}
        for topic in self.topics.values():
            orphans.pop(id(topic.log), None)
        for log in orphans.values():
            self._release(log, self._users(log), log.end)

    def _users(self, log: Any) -> list[Subscription]:
        # A detached subscription has lost its messages, and gets no more.
        return [s for s in self.subscriptions.values() if s.log is log and not s.settings.detached]

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
        oldest = [s.backlog.done_before for s in users] + [s.low for s in holders]
        keep_from = min([retained_from, *oldest])
        needed = [(s.backlog.done_before, s.backlog.needed_mask()) for s in users]

        def is_needed(low: int, high: int) -> bool:
            return (
                high > retained_from
                or any(s.needs(low, high) for s in holders)
                or any(mask[max(0, low - at) : max(0, high - at)].any() for at, mask in needed)
            )

        log.release(keep_from, is_needed)

    def delete_topic(self, topic: Topic) -> None:
        """Remove a topic; its subscriptions keep what they have."""
        del self.topics[topic.name]
        for subscription in self.subscriptions.values():
            settings = subscription.settings
            if subscription.log is topic.log:
                settings.topic = DELETED_TOPIC
                settings.ClearField("topic_message_retention_duration")
            if settings.dead_letter_policy.dead_letter_topic == topic.name:
                settings.dead_letter_policy.dead_letter_topic = DELETED_TOPIC

    def delete_subscription(self, subscription: Subscription) -> None:
        """Remove a subscription and end its streams."""
        del self.subscriptions[subscription.name]
        subscription.is_deleted = True
        subscription.notify()


def _seconds(snapshot: Snapshot) -> float:
    return float(snapshot.settings.expire_time.ToNanoseconds() / 1e9)
