"""Tasks: kept in the global database, run on their schedule or at once; runs in the emulator."""

# ruff: noqa: S608, SLF001 - values are quoted; fakesnow's connection is ours

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import snowflake.connector.errors

from penstock.emulator.snowflake import blocks
from penstock.emulator.snowflake.cursor import Cursor, text
from penstock.emulator.snowflake.database import Database
from penstock.emulator.snowflake.errors import sql_error
from penstock.emulator.snowflake.names import NAME, ObjectName, resolve, unquoted
from penstock.emulator.snowflake.scripting import BlockRun

_LOGGER = logging.getLogger(__name__)
_LONGEST_HISTORY = 1000
_FLAGS = re.IGNORECASE | re.DOTALL
_CREATE = re.compile(
    r"CREATE\s+(?P<replace>OR\s+REPLACE\s+)?TASK\s+(?P<exists>IF\s+NOT\s+EXISTS\s+)?"
    rf"(?P<name>{NAME})\s+(?P<options>.*?)\bAS\b\s+(?P<body>.*)",
    _FLAGS,
)
_WHEN = re.compile(r"(?P<options>.*?)\bWHEN\b(?P<condition>.*)", _FLAGS)
_OPTION = re.compile(r"\s*(\w+)\s*=\s*('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[\w$.]+)\s*,?")
_ALTER = re.compile(
    rf"ALTER\s+TASK\s+(?P<exists>IF\s+EXISTS\s+)?(?P<name>{NAME})\s+(?P<verb>RESUME|SUSPEND)",
    _FLAGS,
)
_EXECUTE = re.compile(rf"EXECUTE\s+TASK\s+(?P<name>{NAME})", _FLAGS)
_DROP = re.compile(rf"DROP\s+TASK\s+(?P<exists>IF\s+EXISTS\s+)?(?P<name>{NAME})", _FLAGS)
_SHOW = re.compile(
    rf"SHOW\s+TASKS(?:\s+LIKE\s+'(?P<like>(?:[^']|'')*)')?(?:\s+IN\s+(?P<scope>ACCOUNT|(?:DATABASE\s+|"
    rf"SCHEMA\s+)?{NAME}))?",
    _FLAGS,
)
_SCHEDULE = re.compile(r"(\d+)\s*(SECOND|MINUTE|HOUR|S|M|H)S?", re.IGNORECASE)
_SECONDS = {"S": 1, "M": 60, "H": 3600}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a task, or one that its condition has spared."""

    name: str
    state: str
    started: float
    completed: float
    error_code: str | None = None
    error_message: str | None = None


class Tasks:
    """Runs the statements about tasks, and the tasks."""

    def __init__(
        self,
        database: Database,
        run: Callable[[Cursor, str], int],
        holds: Callable[[Cursor, str], bool],
    ) -> None:
        self._database = database
        self._run = run
        self._holds = holds
        self._due: dict[ObjectName, float] = {}
        self._wake = threading.Condition()
        self._is_stopped = False
        self._running = threading.Lock()
        self.history: deque[Run] = deque(maxlen=_LONGEST_HISTORY)
        self._thread = threading.Thread(
            target=self._keep_schedule, name="penstock-tasks", daemon=True
        )

    def start(self) -> None:
        """Begin to run tasks on their schedule."""
        for database, schema, name, seconds in self._database.rows(
            "SELECT database, schema, name, seconds FROM _penstock.tasks WHERE state = 'started'"
        ):
            self._due[(database, schema, name)] = time.monotonic() + (seconds or 0.0)
        self._thread.start()

    def stop(self) -> None:
        """Stop; a task that runs is waited for."""
        with self._wake:
            self._is_stopped = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def run(self, cursor: Cursor, statement: str) -> bool:
        """Run a statement if it is about tasks; tells whether it was."""
        for pattern, handler in (
            (_CREATE, self._create),
            (_ALTER, self._alter),
            (_EXECUTE, self._execute),
            (_DROP, self._drop),
            (_SHOW, self._show),
        ):
            if match := pattern.fullmatch(statement):
                cursor.commit_open()
                handler(cursor, match)
                return True
        return False

    def _create(self, cursor: Cursor, match: re.Match[str]) -> None:
        where = resolve(match["name"], cursor._conn)
        options, condition = match["options"], None
        if with_condition := _WHEN.fullmatch(options):
            options, condition = with_condition["options"], with_condition["condition"].strip()
        settings = _settings(options)
        seconds = _interval(settings.get("SCHEDULE"))
        blocks.parse_body(match["body"])
        if self._known(where):
            if match["exists"]:
                return cursor.say(f"{where[2]} already exists, statement succeeded.")
            if not match["replace"]:
                raise sql_error(f"Object '{where[2]}' already exists.", 2002, "42710")
        self._database.run(
            "INSERT OR REPLACE INTO _penstock.tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'suspended', "
            "now(), ?)",
            [
                *where,
                settings.get("WAREHOUSE"),
                seconds,
                settings.get("SCHEDULE"),
                condition,
                match["body"].strip(),
                settings.get("COMMENT", ""),
            ],
        )
        with self._wake:
            self._due.pop(where, None)
        return cursor.say(f"Task {where[2]} successfully created.")

    def _alter(self, cursor: Cursor, match: re.Match[str]) -> None:
        where = resolve(match["name"], cursor._conn)
        if not self._known(where):
            if match["exists"]:
                return cursor.say("Statement executed successfully.")
            raise _missing(where)
        is_resumed = match["verb"].upper() == "RESUME"
        rows = self._database.rows(
            "UPDATE _penstock.tasks SET state = ? WHERE database = ? AND schema = ? AND name = ? "
            "RETURNING seconds",
            ["started" if is_resumed else "suspended", *where],
        )
        seconds = rows[0][0]
        if is_resumed and seconds is None:
            raise sql_error(f"Task {where[2]} has no schedule, so it cannot be resumed", 91083)
        with self._wake:
            if is_resumed:
                self._due[where] = time.monotonic() + seconds
            else:
                self._due.pop(where, None)
            self._wake.notify_all()
        return cursor.say("Statement executed successfully.")

    def _execute(self, cursor: Cursor, match: re.Match[str]) -> None:
        where = resolve(match["name"], cursor._conn)
        if not self._known(where):
            raise _missing(where)
        with self._wake:
            self._due[where] = 0.0
            self._wake.notify_all()
        cursor.say(f"Task {where[2]} is scheduled to run immediately.")

    def _drop(self, cursor: Cursor, match: re.Match[str]) -> None:
        where = resolve(match["name"], cursor._conn)
        if not self._known(where) and not match["exists"]:
            raise _missing(where)
        self._database.run(
            "DELETE FROM _penstock.tasks WHERE database = ? AND schema = ? AND name = ?", where
        )
        with self._wake:
            self._due.pop(where, None)
        cursor.say(f"{where[2]} successfully dropped.")

    def _show(self, cursor: Cursor, match: re.Match[str]) -> None:
        like = text(match["like"].replace("''", "'") if match["like"] is not None else "%")
        scope = _scope(cursor, match["scope"])
        cursor.answer(
            "SELECT created AS created_on, name, NULL::VARCHAR AS id, database AS database_name, "
            "schema AS schema_name, 'SYSADMIN' AS owner, comment, warehouse, schedule, "
            "NULL::VARCHAR AS predecessors, state, body AS definition, condition "
            f"FROM _fs_global._penstock.tasks WHERE name ILIKE {like}{scope} ORDER BY name"
        )

    def _known(self, where: ObjectName) -> bool:
        return bool(
            self._database.rows(
                "SELECT 1 FROM _penstock.tasks WHERE database = ? AND schema = ? AND name = ?",
                where,
            )
        )

    def _keep_schedule(self) -> None:
        while True:
            with self._wake:
                if self._is_stopped:
                    return
                now = time.monotonic()
                where = min(self._due, key=lambda name: self._due[name], default=None)
                if where is None or self._due[where] > now:
                    self._wake.wait(None if where is None else self._due[where] - now)
                    continue
                del self._due[where]
            try:
                seconds = self.run_now(where)
            except Exception:  # the top of a thread: one bad task must not stop the others
                _LOGGER.exception("a task failed by a mistake of the emulator")
                seconds = None
            with self._wake:
                if seconds is not None:
                    self._due.setdefault(where, time.monotonic() + seconds)

    def run_now(self, where: ObjectName) -> float | None:
        """Run a task at once; returns after how many seconds it is due again."""
        rows = self._database.rows(
            "SELECT condition, body, seconds, state FROM _penstock.tasks "
            "WHERE database = ? AND schema = ? AND name = ?",
            where,
        )
        if not rows:
            raise _missing(where)
        condition, body, seconds, state = rows[0]
        with self._running:
            self.history.append(self._run_body(where, condition, body))
        return seconds if state == "started" else None

    def _run_body(self, where: ObjectName, condition: str | None, body: str) -> Run:
        started = time.time()
        connection = self._database.connect()
        cursor = Cursor(self._database, connection)
        try:
            cursor.use(*where[:2])
            if condition and not self._holds(cursor, condition):
                return Run(where[2], "SKIPPED", started, time.time())
            BlockRun(cursor, self._run, blocks.parse_body(body)).run()
        except snowflake.connector.errors.Error as exc:
            code, message = f"{exc.errno:06d}", str(exc.raw_msg or exc.msg)
            return Run(where[2], "FAILED", started, time.time(), code, message)
        else:
            return Run(where[2], "SUCCEEDED", started, time.time())
        finally:
            self._database.leave(connection)


def _scope(cursor: Cursor, scope: str | None) -> str:
    """Give the condition that keeps the tasks of a schema or a database."""
    connection = cursor._conn
    if scope is not None and scope.upper() == "ACCOUNT":
        return ""
    database, schema = connection.database, connection.schema
    if scope is not None:
        kind, _, name = scope.partition(" ")
        if kind.upper() == "DATABASE":
            return f" AND database = {text(unquoted(name.strip()))}"
        name = name.strip() if kind.upper() == "SCHEMA" else scope
        # A schema is where a table of it would be.
        database, schema, _ = resolve(f"{name}.X", connection)
    if database is None or schema is None:
        return ""
    return f" AND database = {text(database)} AND schema = {text(schema)}"


def _settings(options: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    position = 0
    while match := _OPTION.match(options, position):
        value = match[2]
        if value.startswith("'"):
            value = value[1:-1].replace("''", "'").replace("\\\\", "\\")
        settings[match[1].upper()] = unquoted(value) if value.startswith('"') else value
        position = match.end()
    if options[position:].strip():
        raise sql_error(f"syntax error in CREATE TASK near {options[position:].strip()[:40]!r}")
    return settings


def _interval(schedule: str | None) -> float | None:
    if schedule is None:
        return None
    match = _SCHEDULE.fullmatch(schedule.strip())
    if match is None or int(match[1]) < 1:
        raise sql_error(
            f"the emulator takes schedules of '<n> MINUTE' and the like only, not {schedule!r}",
            2,
            "0A000",
        )
    return float(int(match[1]) * _SECONDS[match[2][0].upper()])


def _missing(where: ObjectName) -> Exception:
    return sql_error(f"Task '{where[2]}' does not exist or not authorized.", 2003, "02000")


def history_rows(runs: deque[Run]) -> list[dict[str, Any]]:
    """Give the history as JSON, the oldest run first."""
    with contextlib.suppress(RuntimeError):
        return [dataclasses.asdict(run) for run in list(runs)]
    return []
