"""The least that a user needs: with exactly that all works, with one grant fewer it is named."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import AccessError
from penstock.postgres.catalog import read_tables
from penstock.postgres.connection import ConnectionSettings, connect_control
from penstock.postgres.privileges import check_privileges, missing_privileges
from penstock.postgres.publication import ensure_publication
from penstock.postgres.server import current_lsn, server_facts
from penstock.postgres.slot import advance_slot, create_slot, drop_slot, has_changes, inspect_slot
from penstock.postgres.snapshot import read_snapshot, snapshot_select
from tests.unit.postgres.server.conftest import Place


@pytest.fixture
def user(place: Place, role: Any) -> ConnectionSettings:
    """A role with exactly what a stream over an existing publication needs."""
    settings: ConnectionSettings = role("REPLICATION", name='"Least ""User"')
    place.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.orders (a int PRIMARY KEY, b text)",
        "INSERT INTO shop.orders VALUES (1, 'x')",
        "CREATE PUBLICATION pub FOR TABLE shop.orders",
        'GRANT USAGE ON SCHEMA shop TO "Least ""User"',
        'GRANT SELECT ON shop.orders TO "Least ""User"',
    )
    return ConnectionSettings.parse(
        place.server.url(place.database, 'Least "User', dict(settings.secrets)["password"])
    )


def test_with_exactly_what_is_needed_everything_works(
    place: Place, user: ConnectionSettings
) -> None:
    with connect_control(user) as connection:
        tables = read_tables(connection, "shop.orders")
        check_privileges(connection, tables)
        version = server_facts(connection).version
        ensure_publication(connection, "pub", tables, version)
        with create_slot(user, "least", version) as slot:
            select = snapshot_select(["a"], "shop", "orders")
            (batch,) = read_snapshot(user, slot.snapshot_name, select)
            assert batch.column(0).to_pylist() == [1]
        place.execute("UPDATE shop.orders SET b = 'y'")
        upto = current_lsn(connection)
        assert has_changes(connection, "least", "pub", upto, version)
        connection.execute("SELECT pg_logical_emit_message(true, 'penstock', '')")
        advance_slot(connection, "least", upto)
        state = inspect_slot(connection, "least", version)
        assert state is not None
        assert state.confirmed_flush_lsn == upto
        drop_slot(connection, "least")


@pytest.mark.parametrize(
    ("taken", "grant"),
    [
        (
            'ALTER ROLE "Least ""User" NOREPLICATION',
            'ALTER ROLE "Least ""User" REPLICATION',
        ),
        (
            'REVOKE USAGE ON SCHEMA shop FROM "Least ""User"',
            'GRANT USAGE ON SCHEMA "shop" TO "Least ""User"',
        ),
        (
            'REVOKE SELECT ON shop.orders FROM "Least ""User"',
            'GRANT SELECT ON TABLE "shop"."orders" TO "Least ""User"',
        ),
        (
            "ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY",
            'ALTER ROLE "Least ""User" BYPASSRLS',
        ),
    ],
)
def test_one_grant_fewer_is_named_and_its_statement_helps(
    place: Place, user: ConnectionSettings, taken: str, grant: str
) -> None:
    place.execute(taken)
    with connect_control(user) as connection:
        tables = read_tables(connection, "shop.orders")
        assert missing_privileges(connection, tables) == [grant]
        with pytest.raises(AccessError) as caught:
            check_privileges(connection, tables)
        assert caught.value.code == "PRIVILEGES"
        assert grant in caught.value.remedy
        assert 'Least "User' in caught.value.subject
        place.execute(grant)
        check_privileges(connection, tables)


def test_a_publication_needs_create_and_ownership(place: Place, user: ConnectionSettings) -> None:
    place.execute("CREATE ROLE owner_of_shop", "ALTER TABLE shop.orders OWNER TO owner_of_shop")
    try:
        place.execute('GRANT SELECT ON shop.orders TO "Least ""User"')
        with connect_control(user) as connection:
            tables = read_tables(connection, "shop.orders")
            check_privileges(connection, tables)
            missing = missing_privileges(connection, tables, needs_publication=True)
            assert missing == [
                f'GRANT CREATE ON DATABASE "{place.database}" TO "Least ""User"',
                'GRANT "owner_of_shop" TO "Least ""User"',
            ]
            with pytest.raises(AccessError, match="let the tables' owner make the publication"):
                check_privileges(connection, tables, needs_publication=True)
            for number, grant in enumerate(missing):
                assert len(missing_privileges(connection, tables, needs_publication=True)) == (
                    2 - number
                )
                with pytest.raises(AccessError, match="PERMISSION"):
                    ensure_publication(connection, "mine", tables, place.version)
                place.execute(grant)
            check_privileges(connection, tables, needs_publication=True)
            ensure_publication(connection, "mine", tables, place.version)
    finally:
        place.execute(
            "DROP PUBLICATION IF EXISTS mine",
            "DROP OWNED BY owner_of_shop CASCADE",
            "DROP ROLE owner_of_shop",
        )


def test_select_on_every_column_is_enough(place: Place, user: ConnectionSettings) -> None:
    place.execute(
        'REVOKE SELECT ON shop.orders FROM "Least ""User"',
        'GRANT SELECT (a) ON shop.orders TO "Least ""User"',
    )
    with connect_control(user) as connection:
        tables = read_tables(connection, "shop.orders")
        assert len(missing_privileges(connection, tables)) == 1
        place.execute('GRANT SELECT (b) ON shop.orders TO "Least ""User"')
        assert missing_privileges(connection, tables) == []


def test_a_batch_read_needs_no_replication(place: Place, user: ConnectionSettings) -> None:
    place.execute('ALTER ROLE "Least ""User" NOREPLICATION')
    with connect_control(user) as connection:
        tables = read_tables(connection, "shop.orders")
        check_privileges(connection, tables, needs_replication=False)


def test_membership_that_managed_services_grant_is_as_good(
    place: Place, user: ConnectionSettings
) -> None:
    place.execute(
        'ALTER ROLE "Least ""User" NOREPLICATION',
        "CREATE ROLE rds_replication",
        'GRANT rds_replication TO "Least ""User"',
    )
    try:
        with connect_control(user) as connection:
            tables = read_tables(connection, "shop.orders")
            assert missing_privileges(connection, tables) == []
    finally:
        place.execute("DROP ROLE rds_replication")


def test_a_superuser_lacks_nothing(place: Place, user: ConnectionSettings) -> None:
    tables = read_tables(place.control, "shop.orders")
    assert missing_privileges(place.control, tables, needs_publication=True) == []


def test_all_that_is_missing_is_told_at_once(place: Place, role: Any) -> None:
    place.execute(
        "CREATE SCHEMA shop", "CREATE TABLE shop.a (x int)", "CREATE TABLE shop.b (x int)"
    )
    with connect_control(role()) as connection:
        tables = read_tables(connection, "shop.*")
        assert len(missing_privileges(connection, tables, needs_publication=True)) == 6
