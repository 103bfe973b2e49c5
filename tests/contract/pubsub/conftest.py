"""What the tests of the Pub/Sub API share: an emulator of their own, and the official clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pubsub_service import Service, running_service


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running
