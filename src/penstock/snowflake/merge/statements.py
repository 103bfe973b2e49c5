"""The statements that apply landed change rows to their target; pure, runs everywhere.

The same ones are run by the driver (`apply`) and are the body of a Snowflake task (`schedule`).

A copy of the landed rows is what all of them work on, so rows that land meanwhile are left alone.
It is a temporary table, made before the transaction because DDL commits one, and filled within it,
so that it has all that a stream on the landing table shows in this transaction.
"""

# ruff: noqa: S608 - names are quoted by `quote`, texts by `literal`

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.snowflake.merge.plan import MergePlan
from penstock.snowflake.merge.resolve import resolve_sql
from penstock.snowflake.merge.work import (
    APPLIED_DELETE,
    CUTS,
    DELETES,
    LATEST_FIRST,
    VOID,
    WORK_TABLE,
    WRITES,
    WorkColumns,
    quote,
)


class Step(Enum):
    """What a statement is for, in the order in which they run."""

    CREATE_WORK = "create the work table"
    BEGIN = "begin"
    FILL_WORK = "copy the landed rows"
    COUNT = "count the rows"
    TRUNCATE = "empty the target"
    VOID = "void what a truncate or a snapshot made void"
    RESOLVE = "find unchanged values"
    MERGE = "merge"
    KEEP = "keep deletes that may be half of a change of key"
    CLEAR = "remove the merged rows"
    COMMIT = "commit"
    DROP_WORK = "drop the work table"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement."""

    step: Step
    sql: str
    # It has nothing to do, and is left out, unless one of these counts is above zero.
    needs: tuple[str, ...] | None = None


# What COUNT gives, in its order. `cuts` are truncates and snapshots, before which nothing counts;
# `tails` are deletes to keep, `kept` those kept before.
COUNTS = ("rows", "bad_ops", "no_order", "null_keys", "cuts", "partial", "tails", "kept")


def merge_statements(plan: MergePlan, *, is_complete: bool = True) -> list[Statement]:
    """Write the statements of one merge.

    Args:
        plan: what is merged.
        is_complete: all rows of the batch have landed. Else the last row of a channel, if it is a
            delete, is applied but stays in the landing table with the values it deleted: it may be
            half of a change of key, whose other half needs them. And rows of a snapshot stay for a
            merge of the whole: a snapshot takes the place of all that the target has.
    """
    work = WorkColumns(plan)
    types = _work_types_sql(plan, work)
    statements = [
        Statement(Step.CREATE_WORK, f"CREATE OR REPLACE TEMPORARY TABLE {WORK_TABLE} AS {types}"),
        Statement(Step.BEGIN, "BEGIN TRANSACTION"),
        Statement(Step.FILL_WORK, _fill_sql(plan, work, is_complete=is_complete)),
        Statement(Step.COUNT, _count_sql(work, is_complete=is_complete)),
        Statement(Step.TRUNCATE, f"DELETE FROM {plan.target}", ("cuts",)),
        Statement(Step.VOID, _VOID_SQL, ("cuts",)),
        Statement(Step.RESOLVE, resolve_sql(plan, is_complete=is_complete), ("partial", "tails")),
        Statement(Step.MERGE, _merge_sql(plan, work)),
    ]
    if not is_complete:
        statements.append(Statement(Step.KEEP, _keep_sql(plan, work), ("tails",)))
    return [
        *statements,
        Statement(Step.CLEAR, _clear_sql(plan, is_complete=is_complete)),
        Statement(Step.COMMIT, "COMMIT"),
        Statement(Step.DROP_WORK, f"DROP TABLE IF EXISTS {WORK_TABLE}"),
    ]


def _work_types_sql(plan: MergePlan, work: WorkColumns) -> str:
    """Select no row, with the target's types: rows are compared and completed as it has them."""
    selected = [f"T.{quote(name)} AS {column}" for name, column in work.by_name.items()]
    selected += _landed_meta(plan)
    return f"SELECT {', '.join(selected)} FROM {plan.target} AS T, {plan.landing} AS L WHERE 1 = 0"


def _fill_sql(plan: MergePlan, work: WorkColumns, *, is_complete: bool) -> str:
    selected = [f"L.{quote(name)} AS {column}" for name, column in work.by_name.items()]
    selected += _landed_meta(plan)
    kept = "" if is_complete else f" WHERE COALESCE(L.{quote(plan.meta.op)}, '') <> 'snapshot'"
    return f"INSERT INTO {WORK_TABLE} SELECT {', '.join(selected)} FROM {plan.landing} AS L{kept}"


def _landed_meta(plan: MergePlan) -> list[str]:
    meta = plan.meta
    op, unchanged = f"L.{quote(meta.op)}", f"L.{quote(meta.unchanged)}"
    channel, offset = f"L.{quote(meta.channel)}", f"L.{quote(meta.offset)}"
    return [
        f"{op} AS M_OP",
        f"L.{quote(meta.lsn)} AS M_LSN",
        f"L.{quote(meta.ordinal)} AS M_ORDINAL",
        f"{channel} AS M_CHANNEL",
        f"{offset} AS M_OFFSET",
        f"TO_JSON({unchanged}::VARIANT) AS M_UNCHANGED",
        f"COALESCE({op} IN ({WRITES}) AND ARRAY_SIZE({unchanged}) > 0, FALSE) AS M_PARTIAL",
        f"({offset} = MAX({offset}) OVER (PARTITION BY {channel})) AS M_TAIL",
        "0 AS M_RANK",
    ]


def _count_sql(work: WorkColumns, *, is_complete: bool) -> str:
    is_null = " OR ".join(f"{column} IS NULL" for column in work.key)
    terms = [
        "COUNT(*)",
        f"COUNT_IF(M_OP IS NULL OR M_OP NOT IN ({WRITES}, {DELETES}, 'truncate'))",
        "COUNT_IF(M_LSN IS NULL OR M_ORDINAL IS NULL OR M_CHANNEL IS NULL OR M_OFFSET IS NULL)",
        f"COUNT_IF(M_OP <> 'truncate' AND ({is_null}))",
        f"COUNT_IF(M_OP IN ({CUTS}))",
        "COUNT_IF(M_PARTIAL)",
        "0" if is_complete else "COUNT_IF(M_TAIL AND M_OP = 'delete')",
        "0" if is_complete else f"COUNT_IF(M_TAIL AND M_OP = '{APPLIED_DELETE}')",
    ]
    named = [f"{term} AS N_{name.upper()}" for name, term in zip(COUNTS, terms, strict=True)]
    return f"SELECT {', '.join(named)} FROM {WORK_TABLE}"


# A truncate becomes void too: all that it means is done. A snapshot has all that was at its place
# in the WAL: an older one, of a batch that was broken off, is void, and so are changes before it.
_VOID_SQL = (
    f"UPDATE {WORK_TABLE} SET M_OP = '{VOID}' FROM "
    "(SELECT M_LSN AS CUT_LSN, IFF(M_OP = 'snapshot', M_ORDINAL - 1, M_ORDINAL) AS CUT_ORDINAL "
    f"FROM {WORK_TABLE} WHERE M_OP IN ({CUTS}) "
    "QUALIFY ROW_NUMBER() OVER (ORDER BY M_LSN DESC, CUT_ORDINAL DESC) = 1) AS CUT "
    f"WHERE {WORK_TABLE}.M_LSN < CUT.CUT_LSN "
    f"OR ({WORK_TABLE}.M_LSN = CUT.CUT_LSN AND {WORK_TABLE}.M_ORDINAL <= CUT.CUT_ORDINAL)"
)


def _merge_sql(plan: MergePlan, work: WorkColumns) -> str:
    matches = " AND ".join(f"T.{quote(name)} = S.{work.by_name[name]}" for name in plan.key)
    # Key columns too: what is equal need not be the same, under a collation for one.
    sets = ", ".join(f"{quote(name)} = S.{column}" for name, column in work.by_name.items())
    names = ", ".join(quote(name) for name in work.by_name)
    values = ", ".join(f"S.{column}" for column in work.names)
    return (
        f"MERGE INTO {plan.target} AS T USING (SELECT {', '.join(work.names)}, M_OP "
        f"FROM {WORK_TABLE} WHERE M_OP <> '{VOID}' QUALIFY ROW_NUMBER() OVER "
        f"(PARTITION BY {work.key_of()} ORDER BY {LATEST_FIRST}, M_RANK DESC) = 1) AS S "
        # Not an applied delete: the key may be in use again, by a row of another channel.
        f"ON {matches} WHEN MATCHED AND S.M_OP = 'delete' THEN DELETE "
        f"WHEN MATCHED AND S.M_OP IN ({WRITES}) THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND S.M_OP IN ({WRITES}) THEN INSERT ({names}) VALUES ({values})"
    )


def _keep_sql(plan: MergePlan, work: WorkColumns) -> str:
    sets = [f"{quote(plan.meta.op)} = '{APPLIED_DELETE}'"]
    sets += [
        f"{quote(name)} = W.{column}"
        for name, column in work.by_name.items()
        if name not in plan.key
    ]
    return (
        f"UPDATE {plan.landing} AS L SET {', '.join(sets)} FROM {WORK_TABLE} AS W "
        f"WHERE {_same_row(plan)} AND W.M_RANK = 1 AND W.M_TAIL AND W.M_OP = 'delete'"
    )


def _clear_sql(plan: MergePlan, *, is_complete: bool) -> str:
    kept = f" AND NOT (W.M_TAIL AND L.{quote(plan.meta.op)} = '{APPLIED_DELETE}')"
    return (
        f"DELETE FROM {plan.landing} AS L USING {WORK_TABLE} AS W "
        f"WHERE {_same_row(plan)} AND W.M_RANK = 0{'' if is_complete else kept}"
    )


def _same_row(plan: MergePlan) -> str:
    channel, offset = quote(plan.meta.channel), quote(plan.meta.offset)
    return f"L.{channel} = W.M_CHANNEL AND L.{offset} = W.M_OFFSET"
