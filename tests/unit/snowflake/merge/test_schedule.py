# ruff: noqa: S608 - the names are ours

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.snowflake.merge import (
    MergeColumn,
    MergePlan,
    MergeTask,
    drop_task,
    ensure_task,
    parse_schedule,
)
from penstock.snowflake.merge.task_body import task_body
from tests.support.merge import LANDING, TARGET, Change, MergeTables, changes
from tests.support.merge_task import TaskError, TaskRun

STREAM = '"DB"."S"."stream"'


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("1 minute", "1 MINUTE"),
        ("5 Minutes", "5 MINUTES"),
        ("30 seconds", "30 SECONDS"),
        (" 2  hours ", "2 HOURS"),
        (
            "USING CRON 0 9-17 * * SUN America/Los_Angeles",
            "USING CRON 0 9-17 * * SUN America/Los_Angeles",
        ),
        ("*/5 * * * * UTC", "USING CRON */5 * * * * UTC"),
        ("0 2 L * MON-FRI Europe/Berlin", "USING CRON 0 2 L * MON-FRI Europe/Berlin"),
    ],
)
def test_schedules_are_written_as_snowflake_has_them(text: str, schedule: str) -> None:
    assert parse_schedule(text) == schedule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "often",
        "5",
        "9 seconds",
        "9 days",
        "11521 minutes",
        "* * * * *",
        "1 minute; DROP",
        "x' y z * * UTC",
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"MERGE_SCHEDULE.*Write '1 minute'"):
        parse_schedule(text)


@pytest.fixture
def streamed(tables: MergeTables) -> MergeTables:
    # A stream is read like a table.
    tables.run(f"CREATE OR REPLACE TABLE {STREAM} AS SELECT * FROM {LANDING}")
    return tables


def run_task(tables: MergeTables) -> None:
    TaskRun(tables.connection, task_body(tables.plan, STREAM)).run()


def test_the_task_does_what_the_driver_does(streamed: MergeTables) -> None:
    streamed.run(f"INSERT INTO {TARGET} VALUES (7, 'old', 'old')")
    streamed.land(
        changes(
            ("truncate", {}),
            ("insert", {"id": 1, "a": "a", "b": "large"}),
            ("update", {"id": 1, "a": "b", "b": None}, ["b"]),
            ("move", {"old": {"id": 1}, "id": 2, "a": "c", "b": None}, ["b"]),
        )
    )

    run_task(streamed)

    assert streamed.target() == [(2, "c", "large")]
    assert streamed.landed_count() == 0


def test_a_run_without_rows_changes_nothing(streamed: MergeTables) -> None:
    streamed.run(f"INSERT INTO {TARGET} VALUES (7, 'old', 'old')")

    run_task(streamed)

    assert streamed.target() == [(7, "old", "old")]


def test_a_task_between_the_halves_of_a_key_change_loses_no_value(streamed: MergeTables) -> None:
    streamed.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'large')")
    first, second = changes(("move", {"old": {"id": 1}, "id": 2, "a": "b", "b": None}, ["b"]))
    streamed.land([first])
    run_task(streamed)
    assert streamed.target() == []
    run_task(streamed)
    streamed.land([second])

    run_task(streamed)

    assert streamed.target() == [(2, "b", "large")]
    assert streamed.landed_count() == 0


def test_a_task_refuses_a_row_without_key_and_changes_nothing(streamed: MergeTables) -> None:
    streamed.land([Change("insert", {"id": None, "a": "x"}, (1, 0))])

    with pytest.raises(TaskError, match=r"PENSTOCK_MERGE_KEY_NULL.*keyColumns"):
        run_task(streamed)

    assert streamed.landed_count() == 1


def test_a_task_that_fails_at_any_line_changes_nothing(streamed: MergeTables) -> None:
    streamed.run(f"INSERT INTO {TARGET} VALUES (7, 'old', 'old')")
    streamed.land(changes(("truncate", {}), ("insert", {"id": 1, "a": "a"}), ("delete", {"id": 1})))
    run = TaskRun(streamed.connection, task_body(streamed.plan, STREAM))
    lines = run.lines
    begun, committed = lines.index("BEGIN TRANSACTION;"), lines.index("COMMIT;")
    for number in range(begun + 1, committed + 1):
        run = TaskRun(streamed.connection, task_body(streamed.plan, STREAM))
        run.lines = [*lines[:number], "SELECT nothing FROM nowhere;"]

        with pytest.raises(Exception, match="NOWHERE"):
            run.run()

        assert streamed.target() == [(7, "old", "old")]
        assert streamed.landed_count() == 3
    run_task(streamed)
    assert streamed.target() == []


def test_the_stream_is_read_within_the_transaction_of_the_merge(tables: MergeTables) -> None:
    lines = task_body(tables.plan, STREAM).split("\n")

    reads = [number for number, line in enumerate(lines) if STREAM in line]
    assert len(reads) == 1
    assert lines.index("BEGIN TRANSACTION;") < reads[0] < lines.index("COMMIT;")
    assert lines[reads[0]].startswith("INSERT INTO ")


class TaskServer:
    """Remembers tasks, as SHOW TASKS tells of them."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.tasks: dict[str, dict[str, str]] = {}
        self.description = [("name",), ("state",), ("comment",)]
        self._rows: list[tuple[str, ...]] = []

    @contextmanager
    def cursor(self) -> Any:
        yield self

    def execute(self, sql: str) -> None:
        self._rows = []
        if sql.startswith("SHOW TASKS LIKE 'MERGE_IT' IN SCHEMA"):
            self._rows = [(name, t["state"], t["comment"]) for name, t in self.tasks.items()]
            return
        self.statements.append(sql)
        if sql.startswith("CREATE OR REPLACE TASK"):
            comment = re.findall(r"COMMENT = '([^']+)", sql)[0]
            self.tasks["MERGE_IT"] = {"state": "suspended", "comment": comment}
        elif sql.endswith("RESUME"):
            self.tasks["MERGE_IT"]["state"] = "started"

    def fetchall(self) -> list[tuple[str, ...]]:
        return self._rows


def make_task(schedule: str = "1 MINUTE", *columns: str) -> MergeTask:
    named = tuple(MergeColumn(name, "VARCHAR") for name in ("id", "it's", *columns))
    plan = MergePlan(TARGET, LANDING, ("id",), named)
    return MergeTask(plan, schedule, "DB", "S", "MERGE_IT", "WH")


def test_a_task_is_made_once_and_resumed() -> None:
    server = TaskServer()

    assert ensure_task(server, make_task()) is True

    stream, task, resume = server.statements
    assert stream == (
        f'CREATE STREAM IF NOT EXISTS "DB"."S"."MERGE_IT_STREAM" ON TABLE {LANDING} '
        "APPEND_ONLY = TRUE SHOW_INITIAL_ROWS = TRUE"
    )
    assert task.startswith(
        'CREATE OR REPLACE TASK "DB"."S"."MERGE_IT" WAREHOUSE = "WH" SCHEDULE = \'1 MINUTE\' '
    )
    assert 'WHEN SYSTEM$STREAM_HAS_DATA(\'"DB"."S"."MERGE_IT_STREAM"\') AS\nDECLARE\n' in task
    assert resume == 'ALTER TASK "DB"."S"."MERGE_IT" RESUME'
    assert ensure_task(server, make_task()) is False
    assert len(server.statements) == 3


@pytest.mark.parametrize("changed", [make_task("2 MINUTES"), make_task("1 MINUTE", "new")])
def test_a_task_that_has_to_be_another_is_replaced(changed: MergeTask) -> None:
    server = TaskServer()
    ensure_task(server, make_task())

    assert ensure_task(server, changed) is True

    assert server.statements[-2] == changed.create_task()
    assert server.tasks["MERGE_IT"]["state"] == "started"


def test_a_suspended_task_is_resumed_and_one_of_a_like_name_is_not_taken_for_it() -> None:
    server = TaskServer()
    ensure_task(server, make_task())
    server.tasks["MERGE_IT"]["state"] = "suspended"
    server.tasks["MERGEXIT"] = {"state": "started", "comment": "mine"}

    assert ensure_task(server, make_task()) is True

    assert server.statements[3:] == ['ALTER TASK "DB"."S"."MERGE_IT" RESUME']


def test_a_task_is_dropped_with_its_stream() -> None:
    server = TaskServer()

    drop_task(server, make_task())

    assert server.statements == [
        'DROP TASK IF EXISTS "DB"."S"."MERGE_IT"',
        'DROP STREAM IF EXISTS "DB"."S"."MERGE_IT_STREAM"',
    ]
