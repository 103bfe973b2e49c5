"""The emulator of a run, with one topic and one subscription; and faults that end by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.pubsub_v1.types import pubsub as api

from penstock.testing import Fault, PubSubEmulator, SubscriptionCounters, pubsub_emulator

TOPIC = "projects/chaos/topics/numbers"
SUBSCRIPTION = "projects/chaos/subscriptions/numbers"
# The emulator is away for five seconds at most; the machine may be slow.
_PATIENCE_SECONDS = 60.0


class Service:
    """A running emulator that may be away for moments."""

    def __init__(self, emulator: PubSubEmulator) -> None:
        self._emulator = emulator
        self.address = emulator.address
        self.pid = emulator.pid()
        # Faults in force, with the time of their end.
        self._faults: list[tuple[float, Fault]] = []

    def create(self, *, is_exactly_once: bool) -> None:
        """Make the topic and the subscription."""
        settings = api.Subscription(
            name=SUBSCRIPTION,
            topic=TOPIC,
            ack_deadline_seconds=10,
            enable_exactly_once_delivery=is_exactly_once,
        )
        with grpc.insecure_channel(self.address) as channel:
            channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")(
                api.Topic.serialize(api.Topic(name=TOPIC)), wait_for_ready=True, timeout=30
            )
            channel.unary_unary("/google.pubsub.v1.Subscriber/CreateSubscription")(
                api.Subscription.serialize(settings), timeout=30
            )

    def counters(self) -> SubscriptionCounters:
        """Count what happened on the subscription."""
        counted: SubscriptionCounters = self._call("counters", SUBSCRIPTION)
        return counted

    def struck(self) -> dict[str, int]:
        """Count the faults that struck, by kind."""
        struck: dict[str, int] = self._call("faults_struck")
        return struck

    def restart(self, seconds: float) -> None:
        """Let the service go away for a while."""
        self._call("restart", seconds)

    def inject(self, fault: Fault, seconds: float) -> None:
        """Put a fault in force for a while."""
        self._faults.append((time.monotonic() + seconds, fault))
        self._call("inject", fault)

    def end_faults(self, *, all_of_them: bool = False) -> None:
        """Take faults back whose time is over."""
        now = time.monotonic()
        left = [] if all_of_them else [(end, fault) for end, fault in self._faults if end > now]
        if len(left) == len(self._faults):
            return
        # The emulator takes back all of them or none.
        self._faults = left
        self._call("clear_faults")
        for _, fault in left:
            self._call("inject", fault)

    def _call(self, name: str, *arguments: Any) -> Any:
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return getattr(self._emulator, name)(*arguments)
            except grpc.RpcError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


@contextmanager
def service(*, is_exactly_once: bool) -> Iterator[Service]:
    """Run an emulator in a process of its own."""
    with pubsub_emulator() as emulator:
        running = Service(emulator)
        running.create(is_exactly_once=is_exactly_once)
        yield running
