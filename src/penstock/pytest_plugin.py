"""The pytest fixtures `pubsub_emulator` and `snowflake_emulator`.

pytest finds them through the package's entry point.

Imports nothing heavy: every pytest run on a machine with Penstock loads this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.pubsub import PubSubEmulator
    from penstock.testing.snowflake import SnowflakeEmulator


@pytest.fixture
def pubsub_emulator() -> Iterator[PubSubEmulator]:
    """Run a Pub/Sub emulator, with PUBSUB_EMULATOR_HOST set, for one test."""
    from penstock.testing.pubsub import pubsub_emulator as running

    with running() as emulator:
        yield emulator


@pytest.fixture
def snowflake_emulator() -> Iterator[SnowflakeEmulator]:
    """Run a Snowflake emulator, trusted by this process and its children, for one test."""
    from penstock.testing.snowflake import snowflake_emulator as running

    with running() as emulator:
        yield emulator
