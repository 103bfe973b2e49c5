"""Connections for the tests of the server's side, on each version that the wheel has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from penstock.postgres.connection import ConnectionSettings, connect_control
from penstock.postgres.slot import SlotState, inspect_slot
from penstock.testing.postgres import PostgresServer


@dataclass(frozen=True)
class Place:
    """A fresh database: its server, settings, and a control connection as the superuser."""

    server: PostgresServer
    database: str
    settings: ConnectionSettings
    control: psycopg.Connection[Any]
    version: int

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.control.execute(statement.encode())


def state_of(place: Place, name: str) -> SlotState:
    state = inspect_slot(place.control, name, place.version)
    assert state is not None
    return state


def make_place(server: PostgresServer, stack: ExitStack) -> Place:
    database = server.create_database()
    stack.callback(server.drop_database, database)
    settings = ConnectionSettings.parse(server.url(database))
    control = stack.enter_context(connect_control(settings))
    return Place(server, database, settings, control, control.info.server_version)


@pytest.fixture
def place(postgres: PostgresServer) -> Iterator[Place]:
    with ExitStack() as stack:
        yield make_place(postgres, stack)


@pytest.fixture(params=[16, 18])
def each_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    server = request.getfixturevalue("postgres" if request.param == 18 else "postgres_16")
    with ExitStack() as stack:
        yield make_place(server, stack)


@pytest.fixture
def role(place: Place) -> Iterator[Callable[..., ConnectionSettings]]:
    """Make roles; they are dropped with all that they own."""
    made: list[str] = []

    def make(attributes: str = "", *, name: str = "") -> ConnectionSettings:
        name = name or f"role_{place.database}_{len(made)}"
        place.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret-of-role' {attributes}")
        made.append(name)
        return ConnectionSettings.parse(place.server.url(place.database, name, "secret-of-role"))

    yield make
    for name in made:
        place.execute(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")
