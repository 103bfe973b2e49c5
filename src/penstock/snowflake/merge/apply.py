"""Runs a merge on a connection of snowflake.connector; on the driver, once per commit.

One transaction: whatever fails, nothing has happened, and the next run does all of it.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConnectError
from penstock.retry import Backoff
from penstock.snowflake.merge.errors import is_transient, translated
from penstock.snowflake.merge.plan import MergePlan
from penstock.snowflake.merge.run import MergeResult, MergeRun
from penstock.snowflake.merge.statements import merge_statements

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 600.0


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
    statements = merge_statements(plan, is_complete=is_complete)
    deadline = clock.monotonic() + timeout_seconds
    backoff = backoff or Backoff(first_seconds=0.5)
    attempt = 0
    while True:
        try:
            with translated(f"The merge into {plan.target}"):
                run = MergeRun(connection, plan, lambda: deadline - clock.monotonic())
                return run.run(statements)
        except ConnectError as exc:
            wait = backoff.seconds(attempt)
            if not is_transient(exc) or clock.monotonic() + wait >= deadline:
                raise
            logger.warning("merge into %s is tried again in %.1f s: %s", plan.target, wait, exc)
            clock.wait(wait)
            attempt += 1


def recover_merge(
    connection: Any, plan: MergePlan, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> MergeResult:
    """Apply what an earlier run has left in the landing table; the batch may not be all there.

    Called at the start of a query. Counting is answered from metadata, so that an empty landing
    table wakes no warehouse.
    """
    with translated(f"Landing table {plan.landing}"), connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {plan.landing}")  # noqa: S608
        row_count = int(cursor.fetchall()[0][0])
    return apply_merge(
        connection,
        plan,
        batch_row_count=row_count,
        is_complete=False,
        timeout_seconds=timeout_seconds,
    )
