"""The merge through the real connector, over HTTP, to fakesnow's server."""

# ruff: noqa: S608 - the names are ours

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import snowflake.connector
import uvicorn
from fakesnow.instance import FakeSnow
from fakesnow.server import app

from penstock.errors import ResourceError
from penstock.snowflake.merge import MergeResult, apply_merge, prepare_merge, recover_merge
from tests.support.merge import LANDING, META_TYPES, TARGET
from tests.support.waiting import wait_for


@pytest.fixture
def connection(snow: FakeSnow) -> Iterator[Any]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, name="fakesnow")
    thread.start()
    try:
        wait_for(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with snowflake.connector.connect(
            user="u",
            password="p",  # noqa: S106
            account="a",
            host="127.0.0.1",
            port=port,
            protocol="http",
            database="DB",
            schema="S",
            session_parameters={
                "CLIENT_OUT_OF_BAND_TELEMETRY_ENABLED": False,
                "FAKESNOW_DB_PATH": ":isolated:",
            },
        ) as made:
            yield made
    finally:
        server.should_exit = True
        thread.join()


def test_a_merge_runs_on_the_real_connector(connection: Any) -> None:
    def run(sql: str) -> Any:
        with connection.cursor() as cursor:
            return cursor.execute(sql).fetchall()

    types = ", ".join(f'"{name}" {type_}' for name, type_ in META_TYPES.items())
    run(f'CREATE TABLE {LANDING} ("id" NUMBER(10,0), "a" VARCHAR, "new" VARCHAR, {types})')
    run(f'CREATE TABLE {TARGET} ("id" NUMBER(10,0), "a" VARCHAR)')
    run(f"INSERT INTO {TARGET} VALUES (1, 'large'), (2, 'x')")
    names = '"id", "a", "new", "_op", "_lsn", "_ordinal", "_channel", "_offset", "_unchanged"'
    run(
        f"INSERT INTO {LANDING} ({names}) "
        "SELECT 1, NULL, 'n', 'update', 5, 0, 'c', 1, ARRAY_CONSTRUCT('a') "
        "UNION ALL SELECT 2, NULL, NULL, 'delete', 6, 0, 'c', 2, ARRAY_CONSTRUCT() "
        "UNION ALL SELECT 3, 'y', NULL, 'insert', 7, 0, 'c', 3, NULL"
    )

    plan = prepare_merge(connection, TARGET, LANDING, ["id"])
    result = apply_merge(connection, plan)

    assert result == MergeResult(
        row_count=3, inserted_count=1, updated_count=1, deleted_count=1, is_truncated=False
    )
    assert sorted(run(f"SELECT * FROM {TARGET}")) == [(1, "large", "n"), (3, "y", None)]
    assert recover_merge(connection, plan) == MergeResult()


def test_errors_of_the_real_connector_are_told_as_ours(connection: Any) -> None:
    with pytest.raises(ResourceError, match=r"SNOWFLAKE_OBJECT.*error 2003"):
        prepare_merge(connection, TARGET, LANDING, ["id"])
