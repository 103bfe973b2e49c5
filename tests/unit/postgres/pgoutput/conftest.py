from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.postgres import PostgresServer, postgres_server
from tests.support.pgoutput import Slot


@pytest.fixture(scope="session", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with postgres_server(version=request.param) as running:
        yield running


@pytest.fixture
def slot(server: PostgresServer) -> Iterator[Slot]:
    made = Slot(server, "postgres")
    try:
        yield made
    finally:
        made.close()
