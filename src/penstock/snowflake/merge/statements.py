"""The statements that apply landed change rows to their target; pure, runs everywhere.

The same ones are run by the driver (`apply`) and are the body of a Snowflake task (`schedule`).

A copy of the landed rows is what all of them work on, so rows that land meanwhile are left alone.
It is a temporary table, made before the transaction because DDL commits one, and filled within it,
so that it has all that a stream on the landing table shows in this transaction.

A row with `_unchanged` columns gets their values in three steps. The rows of a key between an
insert and a delete are one life of it. A change of key is a delete and an insert in adjacent
places, and makes two lives one line. The value is the latest in the line; where the line has none,
that of the target's row with the key that the line began with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from penstock.snowflake.merge.plan import MergePlan

# Not qualified: the session's schema has it, hides it from others and drops it with the session.
WORK_TABLE = "PENSTOCK_MERGE_WORK"

# A delete that was applied although its other half may still come: it keeps the row's values.
APPLIED_DELETE = "applied_delete"
_VOID = "void"
_WRITES = "'insert', 'update', 'snapshot'"
_DELETES = f"'delete', '{APPLIED_DELETE}'"
_OPS = f"{_WRITES}, {_DELETES}, 'truncate'"
_ORDER = ("M_LSN", "M_ORDINAL", "M_CHANNEL", "M_OFFSET")
_META = ("M_OP", *_ORDER, "M_UNCHANGED", "M_PARTIAL", "M_TAIL", "M_RANK")


class Step(Enum):
    """What a statement is for, in the order in which they run."""

    CREATE_WORK = "create the work table"
    BEGIN = "begin"
    FILL_WORK = "copy the landed rows"
    COUNT = "count the rows"
    VOID = "void what a truncate made void"
    TRUNCATE = "truncate the target"
    RESOLVE = "find unchanged values"
    MERGE = "merge"
    KEEP = "keep deletes that may be half of a change of key"
    CLEAR = "remove the merged rows"
    COMMIT = "commit"
    DROP_WORK = "drop the work table"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement; those with a condition may be left out when it selects no row."""

    step: Step
    sql: str
    condition: str | None = None


# What COUNT gives, in its order.
COUNTS = ("rows", "bad_ops", "no_order", "null_keys", "truncates", "partial", "kept")


def merge_statements(plan: MergePlan, *, is_complete: bool = True) -> list[Statement]:
    """Write the statements of one merge.

    Args:
        plan: what is merged.
        is_complete: all rows of the batch have landed. Else the last row of a channel, if it is a
            delete, is applied but stays in the landing table with the values it deleted: it may be
            half of a change of key, whose other half needs them.
    """
    writer = _Writer(plan, is_complete=is_complete)
    has_truncate = f"SELECT 1 FROM {WORK_TABLE} WHERE M_OP = 'truncate'"
    statements = [
        Statement(Step.CREATE_WORK, writer.create_work()),
        Statement(Step.BEGIN, "BEGIN TRANSACTION"),
        Statement(Step.FILL_WORK, writer.fill_work()),
        Statement(Step.COUNT, writer.count()),
        # Before VOID, which leaves no truncate.
        Statement(Step.TRUNCATE, f"DELETE FROM {plan.target}", has_truncate),
        Statement(Step.VOID, _VOID_SQL, has_truncate),
        Statement(Step.RESOLVE, writer.resolve(), writer.needs_resolving()),
        Statement(Step.MERGE, writer.merge()),
    ]
    if not is_complete:
        statements.append(Statement(Step.KEEP, writer.keep(), writer.has_kept()))
    return [
        *statements,
        Statement(Step.CLEAR, writer.clear()),
        Statement(Step.COMMIT, "COMMIT"),
        Statement(Step.DROP_WORK, f"DROP TABLE IF EXISTS {WORK_TABLE}"),
    ]


def quote(name: str) -> str:
    """Write a name so that SQL takes it letter for letter."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Write a text as a constant; a backslash escapes in Snowflake's constants."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


# The truncate itself is void too: all that it means is done.
_VOID_SQL = (
    f"UPDATE {WORK_TABLE} SET M_OP = '{_VOID}' FROM "
    "(SELECT M_LSN AS CUT_LSN, M_ORDINAL AS CUT_ORDINAL "
    f"FROM {WORK_TABLE} WHERE M_OP = 'truncate' "
    "QUALIFY ROW_NUMBER() OVER (ORDER BY M_LSN DESC, M_ORDINAL DESC) = 1) AS CUT "
    f"WHERE {WORK_TABLE}.M_LSN < CUT.CUT_LSN "
    f"OR ({WORK_TABLE}.M_LSN = CUT.CUT_LSN AND {WORK_TABLE}.M_ORDINAL <= CUT.CUT_ORDINAL)"
)


class _Writer:
    """Writes the statements; in the work table columns are C0, C1, ... and M_..."""

    def __init__(self, plan: MergePlan, *, is_complete: bool) -> None:
        self._plan = plan
        self._is_complete = is_complete
        self._columns = [f"C{index}" for index in range(len(plan.columns))]
        self._names = {c.name: w for c, w in zip(plan.columns, self._columns, strict=True)}
        self._key = [self._names[name] for name in plan.key]

    def create_work(self) -> str:
        return (
            f"CREATE OR REPLACE TEMPORARY TABLE {WORK_TABLE} AS {self._landed()} WHERE 1 = 0"
        )

    def fill_work(self) -> str:
        return f"INSERT INTO {WORK_TABLE} {self._landed()}"

    def count(self) -> str:
        is_null = " OR ".join(f"{column} IS NULL" for column in self._key)
        terms = [
            "COUNT(*)",
            f"COUNT_IF(M_OP IS NULL OR M_OP NOT IN ({_OPS}))",
            "COUNT_IF(M_LSN IS NULL OR M_ORDINAL IS NULL OR M_CHANNEL IS NULL OR M_OFFSET IS NULL)",
            f"COUNT_IF(M_OP <> 'truncate' AND ({is_null}))",
            "COUNT_IF(M_OP = 'truncate')",
            "COUNT_IF(M_PARTIAL)",
            "0" if self._is_complete else f"COUNT_IF(M_TAIL AND M_OP = '{APPLIED_DELETE}')",
        ]
        return f"SELECT {', '.join(terms)} FROM {WORK_TABLE}"

    def needs_resolving(self) -> str:
        condition = "M_PARTIAL" if self._is_complete else "(M_PARTIAL OR M_TAIL)"
        return f"SELECT 1 FROM {WORK_TABLE} WHERE {condition} AND M_OP <> '{_VOID}'"

    def resolve(self) -> str:
        """Add a whole row for each key whose last row is not whole; it ranks before that one."""
        keys = ", ".join(self._key)
        order = ", ".join(_ORDER)
        same_key = " AND ".join(f"ALL_ROWS.{key} = NEEDED.{key}" for key in self._key)
        # A tail delete, whose values may be needed later, counts as a row that is not whole.
        wanted = "M_PARTIAL"
        if not self._is_complete:
            wanted = "(M_PARTIAL OR (M_TAIL AND M_OP = 'delete'))"
        partner = (
            "HALF.M_LSN = MOVED.M_LSN AND HALF.M_ORDINAL = MOVED.M_ORDINAL - 1 "
            f"AND HALF.M_OP IN ({_DELETES})"
        )
        is_moved = "MOVED.M_OP = 'insert' AND MOVED.M_PARTIAL"
        half_keys = ", ".join(f"HALF.{key}" for key in self._key)
        live = f"SELECT * FROM {WORK_TABLE} WHERE M_OP <> '{_VOID}'"
        found, chosen = [], []
        for index, column in enumerate(self._plan.columns):
            work = self._columns[index]
            if work in self._key:
                continue
            has = f"(M_OP <> 'delete' AND NOT {self._is_unchanged(column.source_name or column.name)})"
            found.append(
                f"FIRST_VALUE({work}) OVER (PARTITION BY ROOT ORDER BY IFF({has}, 0, 1), N DESC "
                f"ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS V{index}, "
                f"MAX(IFF({has}, 1, 0)) OVER (PARTITION BY ROOT) AS H{index}"
            )
            name = quote(column.name)
            chosen.append(
                f"CASE WHEN H{index} = 1 THEN V{index} "
                f"WHEN OLD_ROW.{quote(self._plan.key[0])} IS NOT NULL THEN OLD_ROW.{name} "
                f"ELSE OWN_ROW.{name} END"
            )
        # CASE loses nothing here: both sides have the landing column's and the target's type.
        values = iter(chosen)
        selected = [
            f"LAST_ROWS.{work}" if work in self._key else next(values) for work in self._columns
        ]
        roots = ", ".join(f"FIRST_VALUE({key}) OVER (PARTITION BY ROOT ORDER BY N) AS R{key}"
                          for key in self._key)
        return " ".join(
            [
                f"INSERT INTO {WORK_TABLE} WITH RECURSIVE LIVE AS ({live}),",
                f"NEEDED AS (SELECT {keys} FROM LIVE WHERE {wanted} UNION",
                f"SELECT {half_keys} FROM LIVE AS MOVED JOIN LIVE AS HALF ON {partner}",
                f"WHERE {is_moved}),",
                f"COUNTED AS (SELECT ALL_ROWS.*, ROW_NUMBER() OVER (ORDER BY {order}) AS N,",
                f"SUM(IFF(M_OP IN ('insert', 'snapshot'), 1, 0)) OVER (PARTITION BY {self._of('ALL_ROWS')}",
                f"ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
                f"+ COALESCE(SUM(IFF(M_OP IN ({_DELETES}), 1, 0)) OVER (PARTITION BY {self._of('ALL_ROWS')}",
                f"ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS LIFE,",
                f"ROW_NUMBER() OVER (PARTITION BY {self._of('ALL_ROWS')} ORDER BY",
                f"{', '.join(f'{column} DESC' for column in _ORDER)}) AS FROM_LAST",
                f"FROM LIVE AS ALL_ROWS JOIN NEEDED ON {same_key}),",
                f"LIVES AS (SELECT COUNTED.*, MIN(N) OVER (PARTITION BY {keys}, LIFE) AS HEAD",
                "FROM COUNTED),",
                "MOVES AS (SELECT MOVED.HEAD AS HEAD, HALF.HEAD AS PARENT",
                f"FROM LIVES AS MOVED JOIN LIVES AS HALF ON {partner} WHERE {is_moved}),",
                "LINES AS (SELECT DISTINCT HEAD, HEAD AS ROOT FROM LIVES",
                "WHERE HEAD NOT IN (SELECT HEAD FROM MOVES)",
                "UNION ALL SELECT MOVES.HEAD, LINES.ROOT FROM MOVES",
                "JOIN LINES ON MOVES.PARENT = LINES.HEAD),",
                "ROOTED AS (SELECT LIVES.*, LINES.ROOT FROM LIVES",
                "JOIN LINES ON LIVES.HEAD = LINES.HEAD),",
                f"FOUND AS (SELECT ROOTED.*, {', '.join([*found, roots])} FROM ROOTED),",
                f"LAST_ROWS AS (SELECT * FROM FOUND WHERE FROM_LAST = 1 AND {wanted})",
                f"SELECT {', '.join(selected)}, M_OP, {order}, M_UNCHANGED,",
                "FALSE, M_TAIL, 1 FROM LAST_ROWS",
                f"LEFT JOIN {self._plan.target} AS OLD_ROW ON {self._target_is('OLD_ROW', 'R')}",
                f"LEFT JOIN {self._plan.target} AS OWN_ROW ON {self._target_is('OWN_ROW', '')}",
            ]
        )

    def merge(self) -> str:
        source = [*self._columns, "M_OP"]
        last = ", ".join(f"{column} DESC" for column in (*_ORDER, "M_RANK"))
        matches = " AND ".join(
            f"T.{quote(name)} = S.{self._names[name]}" for name in self._plan.key
        )
        # Key columns too: what is equal need not be the same, under a collation for one.
        sets = ", ".join(f"{quote(name)} = S.{work}" for name, work in self._names.items())
        names = ", ".join(quote(name) for name in self._names)
        values = ", ".join(f"S.{work}" for work in self._columns)
        return (
            f"MERGE INTO {self._plan.target} AS T USING (SELECT {', '.join(source)} "
            f"FROM {WORK_TABLE} WHERE M_OP <> '{_VOID}' QUALIFY ROW_NUMBER() OVER "
            f"(PARTITION BY {', '.join(self._key)} ORDER BY {last}) = 1) AS S ON {matches} "
            # Not an applied one: the key may be in use again, by a row of another channel.
            "WHEN MATCHED AND S.M_OP = 'delete' THEN DELETE "
            f"WHEN MATCHED AND S.M_OP IN ({_WRITES}) THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND S.M_OP IN ({_WRITES}) THEN INSERT ({names}) VALUES ({values})"
        )

    def has_kept(self) -> str:
        return f"SELECT 1 FROM {WORK_TABLE} WHERE M_TAIL AND M_OP = 'delete' AND M_RANK = 1"

    def keep(self) -> str:
        meta, landing = self._plan.meta, self._plan.landing
        sets = [f"{quote(meta.op)} = '{APPLIED_DELETE}'"]
        sets += [
            f"{quote(name)} = W.{work}" for name, work in self._names.items() if work not in self._key
        ]
        return (
            f"UPDATE {landing} AS L SET {', '.join(sets)} FROM {WORK_TABLE} AS W "
            f"WHERE {self._same_row()} AND W.M_RANK = 1 AND W.M_TAIL AND W.M_OP = 'delete'"
        )

    def clear(self) -> str:
        kept = ""
        if not self._is_complete:
            kept = f" AND NOT (W.M_TAIL AND L.{quote(self._plan.meta.op)} = '{APPLIED_DELETE}')"
        return (
            f"DELETE FROM {self._plan.landing} AS L USING {WORK_TABLE} AS W "
            f"WHERE {self._same_row()} AND W.M_RANK = 0{kept}"
        )

    def _landed(self) -> str:
        meta = self._plan.meta
        selected = [f"{quote(name)} AS {work}" for name, work in self._names.items()]
        op, unchanged = quote(meta.op), quote(meta.unchanged)
        channel, offset = quote(meta.channel), quote(meta.offset)
        selected += [
            f"{op} AS M_OP",
            f"{quote(meta.lsn)} AS M_LSN",
            f"{quote(meta.ordinal)} AS M_ORDINAL",
            f"{channel} AS M_CHANNEL",
            f"{offset} AS M_OFFSET",
            f"TO_JSON({unchanged}) AS M_UNCHANGED",
            f"({op} IN ({_WRITES}) AND COALESCE(ARRAY_SIZE({unchanged}), 0) > 0) AS M_PARTIAL",
            f"({offset} = MAX({offset}) OVER (PARTITION BY {channel})) AS M_TAIL",
            "0 AS M_RANK",
        ]
        return f"SELECT {', '.join(selected)} FROM {self._plan.landing}"

    def _same_row(self) -> str:
        meta = self._plan.meta
        return (
            f"L.{quote(meta.channel)} = W.M_CHANNEL AND L.{quote(meta.offset)} = W.M_OFFSET"
        )

    def _is_unchanged(self, source_name: str) -> str:
        # Exact, because a quote within a name is escaped in JSON.
        name = literal(json.dumps(source_name, ensure_ascii=False))
        return f"COALESCE(M_PARTIAL AND CONTAINS(M_UNCHANGED, {name}), FALSE)"

    def _of(self, table: str) -> str:
        return ", ".join(f"{table}.{key}" for key in self._key)

    def _target_is(self, alias: str, prefix: str) -> str:
        return " AND ".join(
            f"{alias}.{quote(name)} = LAST_ROWS.{prefix}{work}"
            for name, work in zip(self._plan.key, self._key, strict=True)
        )
