"""The statement that finds the values of `_unchanged` columns; pure.

The rows of a key from an insert to a delete are one life of it. A change of key is a delete and an
insert in adjacent places (the source gives them ordinals n and n + 1), and makes one line of two
lives; such changes may follow each other. The value of a column is the latest that a row of the
line has; where none has it, that of the target's row with the key that the line began with; and
where that is gone, of the row with the key itself. Null is a value like any other, hence
FIRST_VALUE in an order that puts rows without the value last, and no function that skips nulls.
"""

# ruff: noqa: S608 - names are quoted by `quote`, texts by `literal`

from __future__ import annotations

import json

from penstock.snowflake.merge.plan import MergeColumn, MergePlan
from penstock.snowflake.merge.work import (
    DELETES,
    LATEST_FIRST,
    ORDER,
    ORDER_BY,
    VOID,
    WORK_TABLE,
    WorkColumns,
    literal,
    quote,
)

_IS_MOVED = "MOVED.M_OP = 'insert' AND MOVED.M_PARTIAL"
_IS_ITS_HALF = (
    "HALF.M_LSN = MOVED.M_LSN AND HALF.M_ORDINAL = MOVED.M_ORDINAL - 1 "
    f"AND HALF.M_OP IN ({DELETES})"
)
# What the work table has after the columns; qualified, for the target may have any name.
_META = (
    "LAST_ROWS.M_OP",
    *(f"LAST_ROWS.{column}" for column in ORDER),
    "LAST_ROWS.M_UNCHANGED",
    "FALSE",
    "LAST_ROWS.M_TAIL",
    "1",
)
_WHOLE = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def resolve_sql(plan: MergePlan, *, is_complete: bool) -> str:
    """Add to the work table a whole row for each key whose last row is not whole.

    It has rank 1, and so comes before the one that landed.
    """
    work = WorkColumns(plan)
    key, all_key = work.key_of(), work.key_of("ALL_ROWS")
    # The values that a tail deletes are looked for in the same way.
    wanted = "M_PARTIAL" if is_complete else "(M_PARTIAL OR (M_TAIL AND M_OP = 'delete'))"
    others = [column for column in plan.columns if column.name not in plan.key]
    found = [_found(column, work.by_name[column.name]) for column in others]
    found += [
        f"FIRST_VALUE({name}) OVER (PARTITION BY ROOT ORDER BY N) AS R{name}" for name in work.key
    ]
    chosen = {work.by_name[column.name]: _chosen(plan, work, column) for column in others}
    selected = [chosen.get(name, f"LAST_ROWS.{name}") for name in work.names]
    lines = [
        f"INSERT INTO {WORK_TABLE} WITH RECURSIVE",
        f"LIVE AS (SELECT * FROM {WORK_TABLE} WHERE M_OP <> '{VOID}'),",
        # All keys that have to do with such rows: theirs, and those they had before.
        f"NEEDED AS (SELECT {key} FROM LIVE WHERE {wanted}",
        f"UNION SELECT {work.key_of('HALF')} FROM LIVE AS MOVED JOIN LIVE AS HALF",
        f"ON {_IS_ITS_HALF} WHERE {_IS_MOVED}),",
        f"COUNTED AS (SELECT ALL_ROWS.*, ROW_NUMBER() OVER (ORDER BY {ORDER_BY}) AS N,",
        f"ROW_NUMBER() OVER (PARTITION BY {all_key} ORDER BY {LATEST_FIRST}) AS FROM_LAST,",
        f"SUM(IFF(M_OP IN ('insert', 'snapshot'), 1, 0)) OVER (PARTITION BY {all_key}",
        f"ORDER BY {ORDER_BY} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
        f"+ COALESCE(SUM(IFF(M_OP IN ({DELETES}), 1, 0)) OVER (PARTITION BY {all_key}",
        f"ORDER BY {ORDER_BY} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS LIFE",
        f"FROM LIVE AS ALL_ROWS JOIN NEEDED ON {work.same_key('ALL_ROWS', 'NEEDED')}),",
        # A life is known by its first row, and so is a line.
        f"LIVES AS (SELECT *, MIN(N) OVER (PARTITION BY {key}, LIFE) AS HEAD FROM COUNTED),",
        "MOVES AS (SELECT MOVED.HEAD AS HEAD, HALF.HEAD AS PARENT",
        f"FROM LIVES AS MOVED JOIN LIVES AS HALF ON {_IS_ITS_HALF} WHERE {_IS_MOVED}),",
        "LINES AS (SELECT DISTINCT HEAD, HEAD AS ROOT FROM LIVES",
        "WHERE HEAD NOT IN (SELECT HEAD FROM MOVES)",
        "UNION ALL SELECT MOVES.HEAD, LINES.ROOT FROM MOVES",
        "JOIN LINES ON MOVES.PARENT = LINES.HEAD),",
        "ROOTED AS (SELECT LIVES.*, LINES.ROOT FROM LIVES JOIN LINES ON LIVES.HEAD = LINES.HEAD),",
        f"FOUND AS (SELECT *, {', '.join(found)} FROM ROOTED),",
        f"LAST_ROWS AS (SELECT * FROM FOUND WHERE FROM_LAST = 1 AND {wanted})",
        f"SELECT {', '.join([*selected, *_META])}",
        "FROM LAST_ROWS",
        f"LEFT JOIN {plan.target} AS OLD_ROW ON {_in_target(plan, work, 'OLD_ROW', 'R')}",
        f"LEFT JOIN {plan.target} AS OWN_ROW ON {_in_target(plan, work, 'OWN_ROW', '')}",
    ]
    return " ".join(lines)


def _found(column: MergeColumn, name: str) -> str:
    """Find the latest value of a line in V..., and in H... whether there is one."""
    # A quote within a name is escaped in JSON, so no name is found within another.
    quoted = literal(json.dumps(column.source_name or column.name, ensure_ascii=False))
    has = f"(M_OP <> 'delete' AND NOT (M_PARTIAL AND CONTAINS(M_UNCHANGED, {quoted})))"
    return (
        f"FIRST_VALUE({name}) OVER (PARTITION BY ROOT ORDER BY IFF({has}, 0, 1), N DESC {_WHOLE}) "
        f"AS V{name}, MAX(IFF({has}, 1, 0)) OVER (PARTITION BY ROOT) AS H{name}"
    )


def _chosen(plan: MergePlan, work: WorkColumns, column: MergeColumn) -> str:
    name, quoted = work.by_name[column.name], quote(column.name)
    return (
        f"CASE WHEN LAST_ROWS.H{name} = 1 THEN LAST_ROWS.V{name} "
        f"WHEN OLD_ROW.{quote(plan.key[0])} IS NOT NULL THEN OLD_ROW.{quoted} "
        f"ELSE OWN_ROW.{quoted} END"
    )


def _in_target(plan: MergePlan, work: WorkColumns, alias: str, prefix: str) -> str:
    return " AND ".join(
        f"{alias}.{quote(name)} = LAST_ROWS.{prefix}{work.by_name[name]}" for name in plan.key
    )
