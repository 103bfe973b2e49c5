"""Runs the body of a merge task on fakesnow, which knows no Snowflake Scripting.

It knows exactly what `task_body` writes, one statement per line, and fails at anything else.
"""

from __future__ import annotations

import re
from typing import Any

_IF = re.compile(r"IF \((?P<condition>[^()]*)\) THEN (?P<then>.*;) END IF;")
_EXCEPTION = re.compile(r"(?P<name>\w+) EXCEPTION \((?P<number>-\d+), '(?P<text>.*)'\);")
_COUNT = re.compile(r"(?P<head>SELECT .*) INTO (?P<variables>:[\w:, ]+) (?P<tail>FROM \w+);")


class TaskError(Exception):
    """What the task's history would show."""


class TaskRun:
    """One run of a body."""

    def __init__(self, connection: Any, body: str) -> None:
        self._connection = connection
        self._variables: dict[str, int] = {"SQLROWCOUNT": 0}
        self._exceptions: dict[str, str] = {}
        lines = body.split("\n")
        begin = lines.index("BEGIN")
        assert lines[0] == "DECLARE"
        assert lines[-5:] == ["EXCEPTION", "WHEN OTHER THEN", "ROLLBACK;", "RAISE;", "END"]
        for line in lines[1:begin]:
            declared = _EXCEPTION.fullmatch(line)
            if declared is not None:
                self._exceptions[declared["name"]] = declared["text"]
            else:
                assert line.endswith(" INTEGER DEFAULT 0;"), line
                self._variables[line.split()[0]] = 0
        self.lines = lines[begin + 1 : -5]

    def run(self) -> None:
        try:
            for line in self.lines:
                self._line(line)
        except Exception:
            self._sql("ROLLBACK")
            raise

    def _line(self, line: str) -> None:
        branch, count = _IF.fullmatch(line), _COUNT.fullmatch(line)
        if branch is not None:
            if self._is_true(branch["condition"]):
                for part in branch["then"].split("; "):
                    self._line(part if part.endswith(";") else f"{part};")
        elif count is not None:
            row = self._sql(f"{count['head']} {count['tail']}")[0]
            names = [name.strip(" :") for name in count["variables"].split(",")]
            self._variables.update(zip(names, (int(value or 0) for value in row), strict=True))
        elif line.startswith("RAISE "):
            raise TaskError(self._exceptions[line[len("RAISE ") : -1]])
        elif line == "N_NOW_KEPT := SQLROWCOUNT;":
            self._variables["N_NOW_KEPT"] = self._variables["SQLROWCOUNT"]
        else:
            assert line.endswith(";"), line
            rows = self._sql(line[:-1])
            if line.startswith(("DELETE", "UPDATE")):
                self._variables["SQLROWCOUNT"] = int(rows[0][0])

    def _is_true(self, condition: str) -> bool:
        python = condition.replace(" OR ", " or ").replace("<>", "!=")
        return bool(eval(python, {"__builtins__": {}}, dict(self._variables)))  # noqa: S307

    def _sql(self, sql: str) -> Any:
        with self._connection.cursor() as cursor:
            return cursor.execute(sql).fetchall()
