"""A real PostgreSQL for the tests of this connector: one server, a fresh database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_16() -> Iterator[PostgresServer]:
    with postgres_server(version=16) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)
