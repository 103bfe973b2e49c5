"""A database with a table of orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.testing.postgres import PostgresServer
from tests.support.cdc import Stream

ORDERS = "CREATE TABLE orders (id int8 PRIMARY KEY, name text, amount numeric(10,2), note text)"


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create_database()
    yield postgres.url(name)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE database = %s AND active",
            [name],
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s OR slot_type = 'physical'",
            [name],
        )
    postgres.drop_database(name)


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ORDERS)
        yield connection


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def make_one(table: str = "public.orders", **options: str) -> Stream:
        made.append(Stream(url, table, **options))
        return made[-1]

    yield make_one
    for stream in made:
        stream.crash()


@pytest.fixture
def stream(make: Callable[..., Stream], db: psycopg.Connection[Any]) -> Stream:
    del db
    return make()
