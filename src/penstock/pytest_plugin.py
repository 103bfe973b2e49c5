"""The pytest fixture `pubsub_emulator`, found by pytest through the package's entry point.

Imports nothing heavy: every pytest run on a machine with Penstock loads this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.pubsub import PubSubEmulator


@pytest.fixture
def pubsub_emulator() -> Iterator[PubSubEmulator]:
    """Run a Pub/Sub emulator, with PUBSUB_EMULATOR_HOST set, for one test."""
    from penstock.testing.pubsub import pubsub_emulator as running

    with running() as emulator:
        yield emulator
