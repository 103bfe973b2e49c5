from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.postgres import PostgresServer, postgres_server
from tests.unit.postgres.types.support import Lab


@pytest.fixture(scope="package", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with postgres_server(version=request.param) as running:
        yield running


@pytest.fixture(scope="package")
def lab(server: PostgresServer) -> Iterator[Lab]:
    made = Lab(server)
    yield made
    made.close()
