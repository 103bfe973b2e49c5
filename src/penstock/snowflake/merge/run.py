"""One attempt at a merge: runs the statements in their order, looks at what they say; driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConnectError, RowError
from penstock.snowflake.merge.plan import MergePlan
from penstock.snowflake.merge.statements import COUNTS, Statement, Step

logger = logging.getLogger(__name__)

Rows = Sequence[Sequence[Any]]

# By count: code, fact, remedy. The task's body raises the same.
REFUSALS = {
    "bad_ops": (
        "MERGE_OP",
        "landed rows have an operation that is none of insert, update, delete, truncate, snapshot",
        "Write rows of a change stream, as format('postgres_cdc') gives them",
    ),
    "no_order": (
        "MERGE_ORDER",
        "landed rows have null in one of the columns that order and identify them",
        "Write all columns of the change stream",
    ),
    "null_keys": (
        "MERGE_KEY_NULL",
        "landed rows have null in a key column",
        "Set option 'keyColumns' to the primary key: columns that are never null, in deletes too",
    ),
}


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge did; the counts of the target's rows are None if the server did not tell."""

    # Landing rows that were applied.
    row_count: int = 0
    inserted_count: int | None = 0
    updated_count: int | None = 0
    deleted_count: int | None = 0
    # All rows of the target were removed first.
    is_truncated: bool = False


class MergeRun:
    """Runs the statements once; on any error the transaction is rolled back."""

    def __init__(self, connection: Any, plan: MergePlan, left_seconds: Callable[[], float]) -> None:
        self._connection = connection
        self._subject = f"The merge into {plan.target}"
        self._left_seconds = left_seconds
        self._counts: dict[str, int] = {}
        self._kept_count = 0
        self._result = MergeResult()
        self._is_open = False
        self._is_done = False

    def run(self, statements: Sequence[Statement]) -> MergeResult:
        """Run them.

        Raises:
            RowError: a landed row cannot be applied.
            ConnectError: the time is over, or another session merges too.
        """
        try:
            for statement in statements:
                if self._is_needed(statement):
                    self._take(statement.step, self._execute(statement))
        except Exception as exc:
            if self._is_done:
                # The work table is left, and the next merge or the end of the session drops it.
                logger.warning("%s is done, but: %s", self._subject, exc)
                return self._result
            self._rollback(exc)
            raise
        except BaseException as exc:
            self._rollback(exc)
            raise
        return self._result

    def _is_needed(self, statement: Statement) -> bool:
        if not self._counts:
            return True
        if not self._counts["rows"]:
            return statement.step in (Step.COMMIT, Step.DROP_WORK)
        return statement.needs is None or any(self._counts[name] for name in statement.needs)

    def _take(self, step: Step, rows: Rows) -> None:
        if step is Step.COUNT:
            self._counts = dict(zip(COUNTS, (int(value or 0) for value in rows[0]), strict=True))
            self._check_counts()
        elif step is Step.MERGE:
            self._result = self._merged(rows)
        elif step is Step.KEEP:
            self._kept_count = int(rows[0][0])
        elif step is Step.CLEAR:
            self._check_cleared(int(rows[0][0]))
        elif step is Step.COMMIT:
            self._is_open = False
            self._is_done = True

    def _execute(self, statement: Statement) -> Rows:
        left = self._left_seconds()
        if left <= 0:
            raise ConnectError(
                "MERGE_TIMEOUT",
                self._subject,
                f"the time was over before it could {statement.step.value}",
                "Use a larger warehouse or allow more time; nothing was changed, and the next run "
                "does it all",
            )
        # Before the call: a BEGIN whose answer is lost has begun.
        self._is_open |= statement.step is Step.BEGIN
        with self._connection.cursor() as cursor:
            # The server is told to cancel a statement that runs longer.
            cursor.execute(statement.sql, timeout=max(1, int(left)))
            rows: Rows = cursor.fetchall()
        return rows

    def _rollback(self, cause: BaseException) -> None:
        if not self._is_open:
            return
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("ROLLBACK")
        except Exception as exc:
            # DDL of a further attempt in this session would commit what is open.
            raise ConnectError(
                "MERGE_SESSION",
                self._subject,
                f"it failed, and so did the rollback ({type(exc).__name__})",
                "Close this connection, which ends its transaction, and merge on a new one",
            ) from cause

    def _merged(self, rows: Rows) -> MergeResult:
        told: list[int | None] = [int(value) for value in rows[0]] if rows else []
        inserted, updated, deleted = told if len(told) == 3 else (None, None, None)
        return MergeResult(
            row_count=self._counts["rows"],
            inserted_count=inserted,
            updated_count=updated,
            deleted_count=deleted,
            is_truncated=self._counts["cuts"] > 0,
        )

    def _check_counts(self) -> None:
        for name, (code, fact, remedy) in REFUSALS.items():
            if self._counts[name]:
                raise RowError(code, self._subject, f"{self._counts[name]} {fact}", remedy)

    def _check_cleared(self, cleared_count: int) -> None:
        expected = self._counts["rows"] - self._counts["kept"] - self._kept_count
        if cleared_count != expected:
            raise ConnectError(
                "MERGE_CONFLICT",
                self._subject,
                f"{cleared_count} landed rows were there to remove where {expected} were merged",
                "Another session merges the same rows, or (_channel, _offset) is not unique: let "
                "one query or one task merge into a target",
            )
