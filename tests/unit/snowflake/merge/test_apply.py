# ruff: noqa: S608 - the names are ours

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from snowflake.connector.errors import OperationalError, ProgrammingError

from penstock._core.clock import ManualClock
from penstock.errors import AccessError, ConnectError, PenstockError, WriteRejectedError
from penstock.snowflake.merge import (
    MergeResult,
    Step,
    apply_merge,
    merge_statements,
    recover_merge,
)
from tests.support.merge import LANDING, TARGET, Change, Hooked, MergeTables, changes

BATCH = changes(
    ("insert", {"id": 1, "a": "void", "b": "void"}),
    ("truncate", {}),
    ("insert", {"id": 1, "a": "a1", "b": "large"}),
    ("update", {"id": 1, "a": "a2", "b": None}, ["b"]),
    ("move", {"old": {"id": 1}, "id": 2, "a": "a3", "b": None}, ["b"]),
    ("insert", {"id": 3, "a": "x", "b": "y"}),
    ("delete", {"id": 3}),
)
BEFORE = [(7, "old", "old"), (8, "old", "old")]
AFTER = [(2, "a3", "large")]

LOST = OperationalError(msg="connection reset", errno=250003)


def prepare(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (7, 'old', 'old'), (8, 'old', 'old')")
    tables.land(BATCH)


def fail_at(number: int, error: Exception) -> Callable[[str], None]:
    """Fail at the numbered call, once."""
    calls = iter(range(1000))

    def call(_sql: str) -> None:
        if next(calls) == number:
            raise error

    return call


def test_the_list_of_statements_has_each_step(tables: MergeTables) -> None:
    statements = merge_statements(tables.plan, is_complete=False)

    assert [statement.step for statement in statements] == list(Step)


@pytest.mark.parametrize(
    ("number", "is_complete"),
    [*((n, True) for n in range(len(Step) - 2)), *((n, False) for n in range(len(Step) - 1))],
)
def test_whatever_statement_fails_nothing_has_happened_and_the_next_run_does_all(
    tables: MergeTables, number: int, is_complete: bool
) -> None:
    prepare(tables)
    refused = ProgrammingError(msg="no", errno=1003, sqlstate="42000")
    hooked = Hooked(tables.connection, before=fail_at(number, refused))

    with pytest.raises(WriteRejectedError, match="SNOWFLAKE_REFUSED"):
        apply_merge(hooked, tables.plan, is_complete=is_complete)

    assert len(hooked.statements) <= len(Step)
    assert tables.target() == BEFORE
    assert tables.landed_count() == len(BATCH)
    apply_merge(tables.connection, tables.plan)
    assert tables.target() == AFTER
    assert tables.landed_count() == 0


def test_a_merge_is_done_even_if_the_work_table_cannot_be_dropped(tables: MergeTables) -> None:
    prepare(tables)

    def fail(sql: str) -> None:
        if sql.startswith("DROP"):
            raise LOST

    result = apply_merge(Hooked(tables.connection, before=fail), tables.plan)

    assert result.row_count == len(BATCH)
    assert tables.target() == AFTER


@pytest.mark.parametrize("number", range(len(Step) - 1))
def test_a_lost_answer_is_tried_again_and_merges_once(tables: MergeTables, number: int) -> None:
    prepare(tables)
    clock = ManualClock()
    hooked = Hooked(tables.connection, after=fail_at(number, LOST))

    apply_merge(hooked, tables.plan, clock=clock)

    assert tables.target() == AFTER
    assert tables.landed_count() == 0


def test_a_merge_run_twice_changes_nothing(tables: MergeTables) -> None:
    prepare(tables)
    apply_merge(tables.connection, tables.plan)

    result = apply_merge(tables.connection, tables.plan)

    assert result == MergeResult()
    assert tables.target() == AFTER


def test_a_batch_that_is_run_again_after_its_merge_finds_nothing_to_do(
    tables: MergeTables,
) -> None:
    """A driver that dies between the merge and Spark's commit: its rows are skipped as landed."""
    prepare(tables)
    apply_merge(tables.connection, tables.plan, batch_row_count=len(BATCH))
    tables.run(f"UPDATE {TARGET} SET \"a\" = 'seen by a reader'")

    result = apply_merge(tables.connection, tables.plan, batch_row_count=len(BATCH))

    assert result.row_count == 0
    assert tables.target() == [(2, "seen by a reader", "large")]


def test_the_last_batch_landed_and_merged_again_gives_the_same(tables: MergeTables) -> None:
    prepare(tables)
    apply_merge(tables.connection, tables.plan)
    tables.land(BATCH)

    apply_merge(tables.connection, tables.plan)

    assert tables.target() == AFTER


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize(
    "step", [Step.FILL_WORK, Step.COUNT, Step.RESOLVE, Step.MERGE, Step.CLEAR, Step.COMMIT]
)
def test_rows_that_land_during_a_merge_stay_for_the_next(
    tables: MergeTables, step: Step, is_complete: bool
) -> None:
    prepare(tables)
    late = Change("update", {"id": 2, "a": "late", "b": None}, (100, 0), ["b"])
    statements = merge_statements(tables.plan, is_complete=is_complete)
    sql = next(s.sql for s in statements if s.step is step)

    def land(done: str) -> None:
        if done == sql:
            tables.land([late])

    hooked = Hooked(tables.connection, after=land)
    result = apply_merge(hooked, tables.plan, is_complete=is_complete)

    assert result.row_count == len(BATCH)
    assert tables.target() == AFTER
    # An incomplete batch that ends with a delete leaves that too.
    assert tables.landed_count() == (1 if is_complete else 2)
    assert apply_merge(tables.connection, tables.plan).row_count == (1 if is_complete else 2)
    assert tables.target() == [(2, "late", "large")]


def test_rows_that_land_before_the_transaction_begins_are_merged(tables: MergeTables) -> None:
    prepare(tables)

    def land(done: str) -> None:
        if done.startswith("CREATE"):
            tables.land([Change("insert", {"id": 5, "a": "late", "b": "late"}, (100, 0))])

    apply_merge(Hooked(tables.connection, after=land), tables.plan)

    assert tables.target() == [*AFTER, (5, "late", "late")]
    assert tables.landed_count() == 0


def test_a_batch_without_rows_sends_no_statement(tables: MergeTables) -> None:
    hooked = Hooked(tables.connection)

    result = apply_merge(hooked, tables.plan, batch_row_count=0)

    assert result == MergeResult()
    assert hooked.statements == []


def test_statements_that_have_nothing_to_do_are_left_out(tables: MergeTables) -> None:
    tables.land(changes(("insert", {"id": 1, "a": "x", "b": "y"})))
    hooked = Hooked(tables.connection)

    apply_merge(hooked, tables.plan)

    needed = [s.sql for s in merge_statements(tables.plan) if s.needs is None]
    assert hooked.statements == needed


def test_rows_of_an_earlier_run_are_merged_at_the_start(tables: MergeTables) -> None:
    prepare(tables)

    result = recover_merge(tables.connection, tables.plan)

    assert result.row_count == len(BATCH)
    assert tables.target() == AFTER


def test_recovery_of_an_empty_landing_table_only_counts(tables: MergeTables) -> None:
    hooked = Hooked(tables.connection)

    recover_merge(hooked, tables.plan)

    assert hooked.statements == [f"SELECT COUNT(*) FROM {LANDING}"]


def test_half_of_a_key_change_that_was_left_over_loses_no_large_value(
    tables: MergeTables,
) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'large')")
    first, second = changes(("move", {"old": {"id": 1}, "id": 2, "a": "b", "b": None}, ["b"]))
    tables.land([first])
    recover_merge(tables.connection, tables.plan)
    assert tables.target() == []

    tables.land([second])
    apply_merge(tables.connection, tables.plan)

    assert tables.target() == [(2, "b", "large")]
    assert tables.landed_count() == 0


def test_a_kept_delete_never_deletes_again(tables: MergeTables) -> None:
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'a', 'large')")
    tables.land(changes(("delete", {"id": 1})))
    recover_merge(tables.connection, tables.plan)
    # Not as the conditions say, through another channel; and merged before the delete goes.
    tables.run(f"INSERT INTO {TARGET} VALUES (1, 'again', 'again')")

    recover_merge(tables.connection, tables.plan)

    assert tables.target() == [(1, "again", "again")]


def test_a_merge_of_rows_that_another_session_removes_is_undone(tables: MergeTables) -> None:
    prepare(tables)

    def steal(sql: str) -> None:
        if sql.startswith("DELETE FROM " + LANDING):
            # In the session itself: DuckDB does not wait for the other one, as Snowflake does.
            tables.connection._duck_conn.execute(f'DELETE FROM {LANDING} WHERE "_offset" = 3')

    with pytest.raises(ConnectError, match=r"MERGE_CONFLICT.*7 landed rows .* 8 were merged"):
        apply_merge(Hooked(tables.connection, before=steal), tables.plan)

    assert tables.target() == BEFORE


def test_what_does_not_pass_is_given_up_at_the_deadline(tables: MergeTables) -> None:
    prepare(tables)
    clock = ManualClock()

    def always(sql: str) -> None:
        if sql.startswith("MERGE"):
            raise LOST

    hooked = Hooked(tables.connection, before=always)
    with pytest.raises(ConnectError, match="SNOWFLAKE_CONNECTION"):
        apply_merge(hooked, tables.plan, clock=clock, timeout_seconds=60)

    assert sum(sql.startswith("MERGE") for sql in hooked.statements) > 3
    assert tables.target() == BEFORE


def test_no_statement_begins_after_the_deadline(tables: MergeTables) -> None:
    prepare(tables)
    clock = ManualClock()

    def slow(sql: str) -> None:
        clock.advance(7)

    with pytest.raises(ConnectError, match=r"MERGE_TIMEOUT.*before it could"):
        apply_merge(
            Hooked(tables.connection, after=slow), tables.plan, clock=clock, timeout_seconds=30
        )

    assert tables.target() == BEFORE


def test_a_session_whose_rollback_failed_is_not_used_again(tables: MergeTables) -> None:
    prepare(tables)

    def fail(sql: str) -> None:
        if sql.startswith(("MERGE", "ROLLBACK")):
            raise LOST

    hooked = Hooked(tables.connection, before=fail)
    with pytest.raises(ConnectError, match=r"MERGE_SESSION.*merge on a new one"):
        apply_merge(hooked, tables.plan, clock=ManualClock())

    assert hooked.statements[-1] == "ROLLBACK"


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (ProgrammingError(msg="x", errno=2003, sqlstate="02000"), PenstockError, "OBJECT"),
        (ProgrammingError(msg="x", errno=3001, sqlstate="42501"), AccessError, "PERMISSION"),
        (ProgrammingError(msg="x", errno=604, sqlstate="57014"), ConnectError, "TIMEOUT"),
        (ProgrammingError(msg="x", errno=606, sqlstate="57P03"), PenstockError, "WAREHOUSE"),
    ],
)
def test_errors_of_the_server_say_what_to_do(
    tables: MergeTables, error: Exception, expected: type[Exception], text: str
) -> None:
    prepare(tables)

    with pytest.raises(expected, match=text):
        apply_merge(Hooked(tables.connection, before=fail_at(3, error)), tables.plan)


def test_a_value_in_the_server_s_message_is_not_passed_on(tables: MergeTables) -> None:
    prepare(tables)
    error: Any = ProgrammingError(msg="Numeric value 'geheim'", errno=100038, sqlstate="22018")

    with pytest.raises(WriteRejectedError) as caught:
        apply_merge(Hooked(tables.connection, before=fail_at(5, error)), tables.plan)

    assert "geheim" not in str(caught.value)
