"""One emulator for each module of tests; faults and denials end with the test that made them.

And one PostgreSQL, for the modules that ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.postgres import PostgresServer, postgres_server
from tests.support.pubsub import Service, service


@pytest.fixture(scope="module")
def running_service() -> Iterator[Service]:
    with service() as running:
        yield running


@pytest.fixture
def pubsub(running_service: Service) -> Iterator[Service]:
    yield running_service
    running_service.emulator.clear_faults()
    for permission in ("pubsub.topics.publish", "pubsub.topics.get", "pubsub.subscriptions.get"):
        running_service.emulator.allow(permission)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server
