"""The merge as the body of a Snowflake task: a block of Snowflake Scripting; pure.

Each statement has a line of its own. The stream is read in the transaction of the merge, by an
INSERT that takes no row of it: that moves its offset, and a rollback moves it back. So a run that
fails leaves the stream with data, and the task runs again at its next time. The rows themselves
come from the landing table: what landed before the stream was made, or was left over, is merged
too, and a stream that was lost or made anew loses nothing.
"""

# ruff: noqa: S608 - names are quoted by `quote`, texts by `literal`

from __future__ import annotations

from penstock.snowflake.merge.plan import MergePlan
from penstock.snowflake.merge.run import REFUSALS
from penstock.snowflake.merge.statements import COUNTS, Step, merge_statements
from penstock.snowflake.merge.work import WORK_TABLE, literal

# Snowflake's range for exceptions of users.
_FIRST_NUMBER = -20001


def task_body(plan: MergePlan, stream: str) -> str:
    """Write the block.

    Args:
        plan: what is merged.
        stream: the stream on the landing table, quoted and qualified.
    """
    refusals = list(REFUSALS.items())
    lines = ["DECLARE"]
    for number, (_, (code, fact, remedy)) in enumerate(refusals):
        text = f"[PENSTOCK_{code}] {plan.target}: {fact}. {remedy}"
        lines.append(f"REFUSED_{number} EXCEPTION ({_FIRST_NUMBER - number}, {literal(text)});")
    text = f"[PENSTOCK_MERGE_CONFLICT] {plan.target}: another session merges the same rows"
    lines.append(f"CONFLICT EXCEPTION ({_FIRST_NUMBER - len(refusals)}, {literal(text)});")
    lines += [f"N_{name.upper()} INTEGER DEFAULT 0;" for name in (*COUNTS, "now_kept")]
    lines.append("BEGIN")
    for statement in merge_statements(plan, is_complete=False):
        if statement.step is Step.COUNT:
            lines.append(
                f"INSERT INTO {WORK_TABLE} (M_OP) SELECT 'none' FROM {stream} WHERE 1 = 0;"
            )
            lines.append(_counted(statement.sql))
            lines += [
                f"IF (N_{name.upper()} > 0) THEN RAISE REFUSED_{number}; END IF;"
                for number, (name, _) in enumerate(refusals)
            ]
            continue
        sql = f"{statement.sql};"
        if statement.step is Step.KEEP:
            sql += " N_NOW_KEPT := SQLROWCOUNT;"
        if statement.needs is not None:
            condition = " OR ".join(f"N_{name.upper()} > 0" for name in statement.needs)
            sql = f"IF ({condition}) THEN {sql} END IF;"
        lines.append(sql)
        if statement.step is Step.CLEAR:
            lines.append(
                "IF (SQLROWCOUNT <> N_ROWS - N_KEPT - N_NOW_KEPT) THEN RAISE CONFLICT; END IF;"
            )
    lines += ["EXCEPTION", "WHEN OTHER THEN", "ROLLBACK;", "RAISE;", "END"]
    return "\n".join(lines)


def _counted(sql: str) -> str:
    """Make COUNT's statement one that fills variables."""
    variables = ", ".join(f":N_{name.upper()}" for name in COUNTS)
    head, tail = sql.rsplit(" FROM ", 1)
    return f"{head} INTO {variables} FROM {tail};"
