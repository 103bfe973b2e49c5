"""Runs a merge on a connection of snowflake.connector; on the driver, once per commit.

One transaction: whatever fails, nothing has happened, and the next run does all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConnectError, RowError
from penstock.retry import Backoff
from penstock.snowflake.merge.errors import is_transient, translated
from penstock.snowflake.merge.plan import MergePlan
from penstock.snowflake.merge.statements import COUNTS, Step, merge_statements

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge did; the three last are None if the server did not tell."""

    # Landing rows that were applied and removed.
    row_count: int = 0
    inserted_count: int | None = 0
    updated_count: int | None = 0
    deleted_count: int | None = 0
    is_truncated: bool = False


def apply_merge(
    connection: Any,
    plan: MergePlan,
    *,
    batch_row_count: int | None = None,
    is_complete: bool = True,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    backoff: Backoff | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> MergeResult:
    """Apply all landed rows to the target and remove them, in one transaction.

    The connection needs a current schema, and must not be inside a transaction.

    Args:
        connection: of snowflake.connector; used by nobody else meanwhile.
        plan: what is merged.
        batch_row_count: rows of the batch, also those that had landed before; with 0 nothing is
            sent to the server. None: not known.
        is_complete: all rows of the batch have landed; see `merge_statements`.
        timeout_seconds: for all of it, with what is tried again.
        backoff: how long to wait before trying again what passes by itself.
        clock: for tests.

    Raises:
        RowError: a landed row has no key, no place in the order, or an unknown operation.
        ConnectError: it did not succeed in time.
        PenstockError: the server refused a statement.
    """
    if batch_row_count == 0:
        return MergeResult()
    deadline = clock.monotonic() + timeout_seconds
    backoff = backoff or Backoff(first_seconds=0.5)
    attempt = 0
    while True:
        try:
            with translated(f"The merge into {plan.target}"):
                return _Run(connection, plan, is_complete, lambda: deadline - clock.monotonic()).run()
        except ConnectError as exc:
            wait = backoff.seconds(attempt)
            if not is_transient(exc) or clock.monotonic() + wait >= deadline:
                raise
            logger.warning("merge into %s is tried again in %.1f s: %s", plan.target, wait, exc)
            clock.wait(wait)
            attempt += 1


class _Run:
    """One attempt."""

    def __init__(
        self,
        connection: Any,
        plan: MergePlan,
        is_complete: bool,  # noqa: FBT001
        left_seconds: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._is_complete = is_complete
        self._left_seconds = left_seconds
        self._counts: dict[str, int] = {}
        self._kept_count = 0
        self._result = MergeResult()
        self._is_open = False

    def run(self) -> MergeResult:
        try:
            for statement in merge_statements(self._plan, is_complete=self._is_complete):
                if statement.step is not Step.DROP_WORK and not self._is_needed(statement.step):
                    continue
                self._do(statement.step, statement.sql)
                if statement.step is Step.COUNT and not self._counts["rows"]:
                    self._rollback()
                    break
        except BaseException:
            self._rollback()
            raise
        return self._result

    def _is_needed(self, step: Step) -> bool:
        if step in (Step.VOID, Step.TRUNCATE):
            return self._counts["truncates"] > 0
        if step is Step.RESOLVE:
            return self._counts["partial"] > 0 or not self._is_complete
        return True

    def _do(self, step: Step, sql: str) -> None:
        rows = self._execute(step, sql)
        if step is Step.BEGIN:
            self._is_open = True
        elif step is Step.COUNT:
            self._counts = dict(zip(COUNTS, map(int, rows[0]), strict=True))
            self._check_counts()
        elif step is Step.MERGE:
            self._result = self._merged(rows)
        elif step is Step.KEEP:
            self._kept_count = int(rows[0][0])
        elif step is Step.CLEAR:
            self._check_cleared(int(rows[0][0]))
        elif step is Step.COMMIT:
            self._is_open = False

    def _execute(self, step: Step, sql: str) -> Sequence[Sequence[Any]]:
        left = self._left_seconds()
        if left <= 0:
            raise ConnectError(
                "MERGE_TIMEOUT",
                f"The merge into {self._plan.target}",
                f"the time was over before it could {step.value}",
                "Use a larger warehouse or more time; nothing was changed, and the next run does it",
            )
        with self._connection.cursor() as cursor:
            # The server ends a statement that runs longer.
            cursor.execute(sql, timeout=max(1, int(left)))
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows

    def _rollback(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("ROLLBACK")
        except Exception:
            # The session ends with the connection, and its transaction with it.
            logger.warning("rollback of the merge into %s failed", self._plan.target, exc_info=True)

    def _merged(self, rows: Sequence[Sequence[Any]]) -> MergeResult:
        inserted, updated, deleted = (list(map(int, rows[0])) + [None] * 3)[:3] if rows else [None] * 3
        return MergeResult(
            row_count=self._counts["rows"],
            inserted_count=inserted,
            updated_count=updated,
            deleted_count=deleted,
            is_truncated=self._counts["truncates"] > 0,
        )

    def _check_counts(self) -> None:
        facts = {
            "bad_ops": (
                "MERGE_OP",
                "landed rows have an operation that is none of insert, update, delete, truncate, "
                "snapshot",
                "Write rows of a change stream, as format('postgres_cdc') gives them",
            ),
            "no_order": (
                "MERGE_ORDER",
                "landed rows have no place in the order",
                f"Columns {', '.join(self._plan.meta.names())} of a change stream must not be null",
            ),
            "null_keys": (
                "MERGE_KEY_NULL",
                "landed rows have null in a key column",
                "Set option 'keyColumns' to columns that are never null and that deletes have too: "
                "the primary key, or the columns of the replica identity",
            ),
        }
        for name, (code, fact, remedy) in facts.items():
            if self._counts[name]:
                raise RowError(
                    code,
                    f"The merge into {self._plan.target}",
                    f"{self._counts[name]} {fact}",
                    remedy,
                )

    def _check_cleared(self, cleared_count: int) -> None:
        expected = self._counts["rows"] - self._counts["kept"] - self._kept_count
        if cleared_count != expected:
            raise ConnectError(
                "MERGE_CONFLICT",
                f"The merge into {self._plan.target}",
                f"another session has removed {expected - cleared_count} of the same landed rows",
                "One merge at a time: let the query merge, or a task, and run one query per target",
            )
