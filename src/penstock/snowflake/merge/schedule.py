"""Merges by a Snowflake task instead of by the query; driver, at the start of a query.

A stream on the landing table tells the task whether anything landed, so that no warehouse is woken
for nothing. What is there already and as it should be is left alone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from penstock.errors import OptionError
from penstock.snowflake.merge.errors import translated
from penstock.snowflake.merge.plan import MergePlan
from penstock.snowflake.merge.task_body import task_body
from penstock.snowflake.merge.work import literal, quote

_INTERVAL = re.compile(r"(\d{1,6})\s*(second|minute|hour)s?", re.IGNORECASE)
_CRON = re.compile(
    r"(?:USING\s+CRON\s+)?((?:[\d*/,\-A-Za-z]+\s+){4}[\d*/,\-A-Za-z]+)\s+([A-Za-z0-9_+\-/]+)",
    re.IGNORECASE,
)
_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
# Snowflake's own bounds: 10 seconds, and 8 days.
_SHORTEST_SECONDS = 10
_LONGEST_SECONDS = 11520 * 60


def parse_schedule(text: str) -> str:
    """Read option `mergeSchedule` and write it as Snowflake has it.

    `30 seconds`, `1 minute`, `2 hours`; or five fields of cron and a time zone, with or without
    `USING CRON` in front.

    Raises:
        OptionError: it is neither.
    """
    text = " ".join(text.split())
    interval = _INTERVAL.fullmatch(text)
    if interval is not None:
        unit = interval[2].lower()
        seconds = int(interval[1]) * _UNIT_SECONDS[unit]
        if _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
            return f"{interval[1]} {unit.upper()}{'S' if int(interval[1]) != 1 else ''}"
    cron = _CRON.fullmatch(text)
    if cron is not None:
        return f"USING CRON {cron[1]} {cron[2]}"
    raise OptionError(
        "MERGE_SCHEDULE",
        f"Option 'mergeSchedule' = {text!r}",
        "it is no schedule, or not between 10 seconds and 8 days"
        if interval is not None
        else "it is no schedule",
        "Write '1 minute', '30 seconds', '2 hours', or cron with a time zone: '*/5 * * * * UTC'",
    )


@dataclass(frozen=True, slots=True)
class MergeTask:
    """The task of one target, and the stream that it watches, beside the landing table."""

    plan: MergePlan
    # As `parse_schedule` gives it.
    schedule: str
    database: str
    schema: str
    # Of the task; the stream's has `_STREAM` added.
    name: str
    # None: Snowflake's own compute (serverless).
    warehouse: str | None = None

    @property
    def task_sql(self) -> str:
        """The task's name, for statements."""
        return ".".join(map(quote, (self.database, self.schema, self.name)))

    @property
    def stream_sql(self) -> str:
        """The stream's name, for statements."""
        return ".".join(map(quote, (self.database, self.schema, f"{self.name}_STREAM")))

    def create_stream(self) -> str:
        """Write the stream; rows that are there already count as landed."""
        return (
            f"CREATE STREAM IF NOT EXISTS {self.stream_sql} ON TABLE {self.plan.landing} "
            "APPEND_ONLY = TRUE SHOW_INITIAL_ROWS = TRUE"
        )

    def create_task(self) -> str:
        """Write the task; its comment has a sum of all of it, by which a change is seen."""
        warehouse = f"WAREHOUSE = {quote(self.warehouse)} " if self.warehouse else ""
        head = f"{warehouse}SCHEDULE = {literal(self.schedule)} ALLOW_OVERLAPPING_EXECUTION = FALSE"
        rest = (
            f"WHEN SYSTEM$STREAM_HAS_DATA({literal(self.stream_sql)}) AS\n"
            f"{task_body(self.plan, self.stream_sql)}"
        )
        return (
            f"CREATE OR REPLACE TASK {self.task_sql} {head} "
            f"COMMENT = {literal(_comment(head + rest))} {rest}"
        )


def ensure_task(connection: Any, task: MergeTask) -> bool:
    """Create the task and its stream, or bring them up to date; tell whether anything was done."""
    found = _find_task(connection, task)
    create = task.create_task()
    is_same = found is not None and f"COMMENT = {literal(found['comment'])} " in create
    statements = [] if is_same else [task.create_stream(), create]
    if not is_same or found is None or found["state"].lower() != "started":
        statements.append(f"ALTER TASK {task.task_sql} RESUME")
    for statement in statements:
        _execute(connection, statement, f"Task {task.task_sql}")
    return bool(statements)


def drop_task(connection: Any, task: MergeTask) -> None:
    """Remove the task and its stream; landed rows stay."""
    for statement in (
        f"DROP TASK IF EXISTS {task.task_sql}",
        f"DROP STREAM IF EXISTS {task.stream_sql}",
    ):
        _execute(connection, statement, f"Task {task.task_sql}")


def _comment(definition: str) -> str:
    return f"penstock merge {hashlib.sha256(definition.encode()).hexdigest()[:32]}"


def _find_task(connection: Any, task: MergeTask) -> dict[str, str] | None:
    schema = f"{quote(task.database)}.{quote(task.schema)}"
    # LIKE takes `_` and `%` for any letters, so the name is compared again.
    rows = _execute(
        connection,
        f"SHOW TASKS LIKE {literal(task.name)} IN SCHEMA {schema}",
        f"Tasks of schema {schema}",
    )
    found = [row for row in rows if row["name"] == task.name]
    return found[0] if found else None


def _execute(connection: Any, sql: str, subject: str) -> list[dict[str, str]]:
    with translated(subject), connection.cursor() as cursor:
        cursor.execute(sql)
        names = [column[0].lower() for column in cursor.description or ()]
        return [
            {name: str(value or "") for name, value in zip(names, row, strict=True)}
            for row in cursor.fetchall()
        ]
