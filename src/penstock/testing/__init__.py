"""For tests of programs that use Penstock and its services: servers as context managers.

    with pubsub_emulator() as emulator:
        ...  # PUBSUB_EMULATOR_HOST points to it here
        assert emulator.counters("projects/p/subscriptions/s").outstanding == 0

    with postgres_server() as server:
        ...  # a real PostgreSQL at server.url()

    with snowflake_emulator() as emulator:
        connection = emulator.connect()  # the official connector, on a Snowflake of one process

The pytest fixtures `pubsub_emulator` and `snowflake_emulator` come with the installed package.
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
    from penstock.testing.snowflake import SnowflakeEmulator, SnowflakeFault, snowflake_emulator

__all__ = [
    "Fault",
    "PostgresServer",
    "PubSubEmulator",
    "SnowflakeEmulator",
    "SnowflakeFault",
    "SubscriptionCounters",
    "TopicCounters",
    "postgres_server",
    "pubsub_emulator",
    "snowflake_emulator",
]

# Tests use gRPC and then start Spark, whose JVM is a fork of this process: with gRPC's own support
# for forks, which only a child that uses gRPC needs, one such start in fifty fails. It is read when
# gRPC makes its first connection.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

_MODULES = {
    "PostgresServer": "postgres",
    "postgres_server": "postgres",
    "SnowflakeEmulator": "snowflake",
    "SnowflakeFault": "snowflake",
    "snowflake_emulator": "snowflake",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: a test with PostgreSQL does not need the Pub/Sub client, nor the
    # other way round.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "pubsub")
    return getattr(importlib.import_module(f"penstock.testing.{module}"), name)
