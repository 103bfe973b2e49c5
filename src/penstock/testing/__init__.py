"""For tests of programs that use Penstock or Pub/Sub: the emulator as a context manager.

    with pubsub_emulator() as emulator:
        ...  # PUBSUB_EMULATOR_HOST points to it here
        assert emulator.counters("projects/p/subscriptions/s").outstanding == 0

The pytest fixture of the same name comes with the installed package.
"""

from penstock.testing.pubsub import (
    Fault,
    PubSubEmulator,
    SubscriptionCounters,
    TopicCounters,
    pubsub_emulator,
)

__all__ = [
    "Fault",
    "PubSubEmulator",
    "SubscriptionCounters",
    "TopicCounters",
    "pubsub_emulator",
]
