"""For tests of programs that use Penstock, Pub/Sub or PostgreSQL: servers as context managers.

    with pubsub_emulator() as emulator:
        ...  # PUBSUB_EMULATOR_HOST points to it here
        assert emulator.counters("projects/p/subscriptions/s").outstanding == 0

    with postgres_server() as server:
        ...  # a real PostgreSQL at server.url()

The pytest fixture `pubsub_emulator` comes with the installed package.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.postgres import PostgresServer, postgres_server
    from penstock.testing.pubsub import (
        Fault,
        PubSubEmulator,
        SubscriptionCounters,
        TopicCounters,
        pubsub_emulator,
    )

__all__ = [
    "Fault",
    "PostgresServer",
    "PubSubEmulator",
    "SubscriptionCounters",
    "TopicCounters",
    "postgres_server",
    "pubsub_emulator",
]

# Tests use gRPC and then start Spark, whose JVM is a fork of this process: with gRPC's own support
# for forks, which only a child that uses gRPC needs, one such start in fifty fails. It is read when
# gRPC makes its first connection.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

_POSTGRES = ("PostgresServer", "postgres_server")


def __getattr__(name: str) -> Any:
    # Imported when asked for: a test with PostgreSQL does not need the Pub/Sub client, nor the
    # other way round.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "penstock.testing.postgres" if name in _POSTGRES else "penstock.testing.pubsub"
    return getattr(importlib.import_module(module), name)
