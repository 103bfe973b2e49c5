"""The table of errors: complete, quiet about values, and right about what passes by itself."""

from __future__ import annotations

import inspect
from typing import Any

import adbc_driver_manager
import psycopg
import pytest
from psycopg import errors as psycopg_errors

from penstock.errors import AccessError, ConnectError, PenstockError, ResourceError, SchemaError
from penstock.postgres.connection import arrow_batches, connect_arrow, connect_control
from penstock.postgres.errors import (
    RULES,
    is_driver_error,
    is_transient,
    postgres_error,
    sqlstate,
    translated,
)
from tests.unit.postgres.server.conftest import Place

CLASSES = [
    cls
    for _, cls in inspect.getmembers(psycopg_errors, inspect.isclass)
    if issubclass(cls, psycopg.Error) and getattr(cls, "sqlstate", None)
]
TRANSIENT = {"08006", "40001", "40P01", "53300", "55006", "57P01", "57P02", "57P03", "08001"}
LASTING = {"28P01", "3D000", "42501", "42P01", "55P03", "53400", "42704", "22P02", "58P01", "57014"}


def test_every_state_that_the_driver_knows_has_a_rule() -> None:
    assert len(CLASSES) > 200
    missing = [
        cls.sqlstate
        for cls in CLASSES
        if cls.sqlstate not in RULES and cls.sqlstate[:2] not in RULES
    ]
    assert missing == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_of_the_driver_becomes_ours(cls: type[psycopg.Error]) -> None:
    with pytest.raises(PenstockError) as caught, translated("Table 'public.t'"):
        raise cls("what happened")
    assert caught.value.subject == "Table 'public.t'"
    assert f"SQLSTATE {cls.sqlstate}" in caught.value.fact
    assert caught.value.remedy
    assert isinstance(caught.value.__cause__, cls)


@pytest.mark.parametrize("name", ["OperationalError", "InterfaceError", "ProgrammingError"])
@pytest.mark.parametrize("driver", [psycopg, adbc_driver_manager])
def test_errors_without_a_state_become_ours_too(driver: object, name: str) -> None:
    cls = getattr(driver, name)
    failure = cls("lost", status_code=10) if driver is adbc_driver_manager else cls("lost")
    with pytest.raises(PenstockError), translated("The server"):
        raise failure


def test_only_what_passes_by_itself_is_transient() -> None:
    found = {cls.sqlstate: cls for cls in CLASSES}
    assert {state for state in TRANSIENT if not is_transient(found[state]("x"))} == set()
    assert {state for state in LASTING if is_transient(found[state]("x"))} == set()
    for state in TRANSIENT | LASTING:
        ours = postgres_error(found[state]("x"), "s")
        assert is_transient(ours) == (state in TRANSIENT)
    codes = {}
    for rule in RULES.values():
        assert codes.setdefault(rule.code, rule.is_transient) == rule.is_transient


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(KeyError), translated("x"):
        raise KeyError("x")
    with pytest.raises(ConnectError, match="first"), translated("x"):
        raise ConnectError("C", "first", "f", "r")
    assert not is_driver_error(ValueError())
    assert not is_transient(ValueError())


def outcome(place: Place, statement: str, driver: str) -> PenstockError:
    """Run a statement that fails; give the error that a user sees."""
    connect = connect_control if driver == "psycopg" else connect_arrow
    connection = connect(place.settings)
    try:
        with translated("Table 'public.t'"), connection.cursor() as cursor:
            cursor.execute(statement.encode() if driver == "psycopg" else statement)
            cursor.fetchall()
    except PenstockError as exc:
        return exc
    finally:
        connection.close()
    pytest.fail("it did not fail")


@pytest.mark.parametrize("driver", ["psycopg", "adbc"])
@pytest.mark.parametrize(
    ("statement", "error", "code", "state"),
    [
        ("SELECT * FROM public.nothing", ResourceError, "TABLE_MISSING", "42P01"),
        ("SELECT nothing", SchemaError, "COLUMN_MISSING", "42703"),
        ("SELECT 'SECRETVALUE'::text::int", SchemaError, "DATA_REFUSED", "22P02"),
        ("SELECT * FROM nowhere.t", ResourceError, "TABLE_MISSING", "42P01"),
        ("SELECT 1 / (g - 500) FROM generate_series(1, 1000) g", SchemaError, "DATA_REFUSED", ""),
    ],
)
def test_both_drivers_tell_the_same(
    place: Place, driver: str, statement: str, error: type[PenstockError], code: str, state: str
) -> None:
    failure = outcome(place, statement, driver)
    assert (type(failure), failure.code) == (error, code)
    assert state in failure.fact
    assert "SECRETVALUE" not in str(failure)
    assert "Query was" not in str(failure)
    assert "\n" not in str(failure)


@pytest.mark.parametrize("driver", ["psycopg", "adbc"])
def test_a_session_that_is_ended_passes_by_itself(place: Place, driver: str) -> None:
    connect = connect_control if driver == "psycopg" else connect_arrow
    connection = connect(place.settings)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone() or (0,)
        place.control.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(ConnectError) as caught, translated("x"):
            cursor.execute("SELECT 1")
    assert caught.value.code in ("SERVER_UNAVAILABLE", "CONNECTION_LOST")
    assert is_transient(caught.value)


def test_an_error_in_mid_stream_of_arrow_is_told_the_same(place: Place) -> None:
    """The reader of batches raises it, long after the statement was taken."""
    connection = connect_arrow(place.settings)
    with connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": "1000"})
        cursor.execute("SELECT 1 / (g - 50000) FROM generate_series(1, 100000) g")
        batches = arrow_batches(cursor)
        assert next(batches).num_rows > 10
        with pytest.raises(SchemaError) as caught, translated("x"):
            list(batches)
    assert caught.value.code == "DATA_REFUSED"


def test_a_permission_is_told_with_the_remedy_of_the_caller(place: Place, role: Any) -> None:
    place.execute("CREATE TABLE public.t (a int)")
    settings = role()
    with (
        connect_control(settings) as connection,
        pytest.raises(AccessError, match="Ask Anna") as caught,
        translated("Table 'public.t'", {"42501": "Ask Anna"}),
    ):
        connection.execute("SELECT * FROM public.t")
    assert sqlstate(caught.value.__cause__ or ValueError()) == "42501"
