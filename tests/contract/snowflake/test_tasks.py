"""Tasks and the streams that wake them."""

# ruff: noqa: S608 - names are of these tests, tokens are no secrets

from __future__ import annotations

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.support.snowflake import Lake
from tests.support.waiting import wait_for


@pytest.fixture
def pair(lake: Lake) -> tuple[str, str]:
    """Make a table to move rows from, with a stream, and one to move them to."""
    source, target = lake.table("ID NUMBER(38,0)"), lake.table("ID NUMBER(38,0)")
    lake.run(f"CREATE STREAM S_{source} ON TABLE {source} APPEND_ONLY = TRUE")
    return source, target


def _create(lake: Lake, source: str, body: str, schedule: str = "1 MINUTE") -> str:
    name = f"MOVE_{source}"
    lake.run(
        f"CREATE OR REPLACE TASK {name} WAREHOUSE = W SCHEDULE = '{schedule}' COMMENT = 'it''s' "
        f"WHEN SYSTEM$STREAM_HAS_DATA('S_{source}') AS {body}"
    )
    return name


def _moving(source: str, target: str) -> str:
    return (
        "BEGIN BEGIN TRANSACTION; "
        f"INSERT INTO {target} SELECT ID FROM {source}; "
        f"INSERT INTO {target} SELECT 1 FROM S_{source} WHERE 0 = 1; "
        f"DELETE FROM {source}; COMMIT; END"
    )


def test_a_task_runs_when_rows_came_in_and_wakes_no_warehouse_else(
    lake: Lake, pair: tuple[str, str]
) -> None:
    source, target = pair
    name = _create(lake, source, _moving(source, target))
    before = lake.emulator.warehouse_statements()
    assert lake.emulator.run_task(name)["state"] == "SKIPPED"
    assert lake.emulator.warehouse_statements() == before
    client = lake.bare(source)
    token = client.open()[1]["next_continuation_token"]
    assert client.append(token, b'{"ID": 1}\n{"ID": 2}')[0] == 200
    assert lake.run(f"SELECT SYSTEM$STREAM_HAS_DATA('S_{source}')") == [(True,)]
    assert lake.emulator.run_task(name)["state"] == "SUCCEEDED"
    assert lake.run(f"SELECT ID FROM {target} ORDER BY ID") == [(1,), (2,)]
    assert lake.run(f"SELECT COUNT(*) FROM {source}") == [(0,)]
    before = lake.emulator.warehouse_statements()
    assert lake.emulator.run_task(name)["state"] == "SKIPPED"
    assert lake.emulator.warehouse_statements() == before


def test_a_task_that_fails_leaves_the_stream_with_data(lake: Lake, pair: tuple[str, str]) -> None:
    source, target = pair
    body = _moving(source, target).replace("COMMIT;", "INSERT INTO NOWHERE SELECT 1; COMMIT;")
    name = _create(lake, source, body)
    lake.run(f"INSERT INTO {source} VALUES (1)")
    run = lake.emulator.run_task(name)
    assert (run["state"], run["error_code"]) == ("FAILED", "002003")
    assert "NOWHERE" in run["error_message"]
    assert run in lake.emulator.task_history()
    assert lake.run(f"SELECT COUNT(*) FROM {target}") == [(0,)]
    assert lake.run(f"SELECT COUNT(*) FROM {source}") == [(1,)]
    assert lake.run(f"SELECT SYSTEM$STREAM_HAS_DATA('S_{source}')") == [(True,)]


def test_a_resumed_task_runs_on_its_schedule(lake: Lake, pair: tuple[str, str]) -> None:
    source, target = pair
    name = _create(lake, source, _moving(source, target), "1 SECOND")
    lake.run(f"INSERT INTO {source} VALUES (7)")
    lake.run(f"ALTER TASK {name} RESUME")
    wait_for(lambda: lake.run(f"SELECT ID FROM {target}"), lambda seen: seen == [(7,)], 30)
    lake.run(f"INSERT INTO {source} VALUES (8)")
    wait_for(lambda: lake.run(f"SELECT COUNT(*) FROM {target}"), lambda seen: seen == [(2,)], 30)
    lake.run(f"ALTER TASK {name} SUSPEND")
    lake.run(f"DROP TASK {name}")


def test_a_suspended_task_runs_when_it_is_executed(lake: Lake, pair: tuple[str, str]) -> None:
    source, target = pair
    name = _create(lake, source, f"INSERT INTO {target} SELECT 1 FROM S_{source} WHERE 0 = 1")
    lake.run(f"INSERT INTO {source} VALUES (1)")
    lake.run(f"EXECUTE TASK {name}")
    wait_for(lambda: [run["state"] for run in lake.emulator.task_history() if run["name"] == name])
    assert lake.run(f"SELECT SYSTEM$STREAM_HAS_DATA('S_{source}')") == [(False,)]


def test_variables_branches_and_exceptions(lake: Lake, pair: tuple[str, str]) -> None:
    source, target = pair
    body = (
        "DECLARE BAD EXCEPTION (-20001, 'rows; that are bad'); N INTEGER DEFAULT 0; "
        "BEGIN BEGIN TRANSACTION; "
        f"SELECT COUNT(*) AS C INTO :N FROM {source}; "
        f"INSERT INTO {target} SELECT ID + :N FROM {source}; "
        "N := SQLROWCOUNT; "
        f"IF (N > 1) THEN RAISE BAD; ELSE DELETE FROM {source}; END IF; COMMIT; "
        "EXCEPTION WHEN OTHER THEN ROLLBACK; RAISE; END"
    )
    name = _create(lake, source, body)
    lake.run(f"INSERT INTO {source} VALUES (10)")
    assert lake.emulator.run_task(name)["state"] == "SUCCEEDED"
    assert lake.run(f"SELECT ID FROM {target}") == [(11,)]
    lake.run(f"INSERT INTO {source} VALUES (1), (2)")
    run = lake.emulator.run_task(name)
    assert (run["state"], run["error_code"]) == ("FAILED", "-20001")
    assert "rows; that are bad" in run["error_message"]
    assert lake.run(f"SELECT ID FROM {target}") == [(11,)]


def test_tasks_are_shown(lake: Lake, pair: tuple[str, str]) -> None:
    name = _create(lake, pair[0], "SELECT 1")
    with lake.emulator.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW TASKS LIKE '{name}' IN SCHEMA PENSTOCK.PUBLIC")
        titles = [column[0] for column in cursor.description]
        (row,) = cursor.fetchall()
    shown = dict(zip(titles, row, strict=True))
    assert shown["name"] == name
    assert shown["state"] == "suspended"
    assert shown["schedule"] == "1 MINUTE"
    assert shown["comment"] == "it's"
    lake.run(f"DROP TASK IF EXISTS {name}")
    assert lake.run(f"SHOW TASKS LIKE '{name}'") == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TASK X SCHEDULE = 'USING CRON * * * * * UTC' AS SELECT 1", "schedules"),
        ("CREATE TASK X AS BEGIN LET A := 1; END", "part of Snowflake Scripting"),
        ("CREATE TASK X AS BEGIN SELECT 1;", "no end"),
        ("CREATE STREAM X ON TABLE ONCE", "APPEND_ONLY = TRUE only"),
        ("CREATE STREAM X ON TABLE NOWHERE APPEND_ONLY = TRUE", "does not exist"),
        ("ALTER TASK NOWHERE RESUME", "does not exist"),
        ("EXECUTE TASK NOWHERE", "does not exist"),
        ("DROP TASK NOWHERE", "does not exist"),
        ("SELECT SYSTEM$STREAM_HAS_DATA('NOWHERE')", "does not exist"),
        ("CREATE PIPE X AS COPY INTO ONCE FROM @STAGE", "of this form only"),
    ],
)
def test_what_the_emulator_does_not_do_is_said(lake: Lake, statement: str, words: str) -> None:
    lake.run("CREATE TABLE IF NOT EXISTS ONCE (A INT)")
    with pytest.raises(ProgrammingError, match=words):
        lake.run(statement)
