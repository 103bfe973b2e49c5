"""The work table: a copy of the landed rows under names of our own; pure.

Columns of the target are C0, C1, ... there, so that no name of a user's meets one of ours.
"""

from __future__ import annotations

from penstock.snowflake.merge.plan import MergePlan

# Not qualified: the session's schema has it, hides it from others and drops it with the session.
WORK_TABLE = "PENSTOCK_MERGE_WORK"

# A delete that was applied although its other half may still come: it keeps the row's values.
APPLIED_DELETE = "applied_delete"
# Of no effect, because a truncate or a snapshot came later.
VOID = "void"

# What takes the place of everything before it.
CUTS = "'truncate', 'snapshot'"
WRITES = "'insert', 'update', 'snapshot'"
DELETES = f"'delete', '{APPLIED_DELETE}'"
ORDER = ("M_LSN", "M_ORDINAL", "M_CHANNEL", "M_OFFSET")
ORDER_BY = ", ".join(ORDER)
LATEST_FIRST = ", ".join(f"{column} DESC" for column in ORDER)


class WorkColumns:
    """How the columns of a plan are called in the work table."""

    def __init__(self, plan: MergePlan) -> None:
        # In the order of the plan.
        self.by_name = {column.name: f"C{index}" for index, column in enumerate(plan.columns)}
        self.key = [self.by_name[name] for name in plan.key]

    @property
    def names(self) -> list[str]:
        """All of them, in the order of the plan."""
        return list(self.by_name.values())

    def key_of(self, table: str = "") -> str:
        """List the key, as columns of a table."""
        prefix = f"{table}." if table else ""
        return ", ".join(prefix + column for column in self.key)

    def same_key(self, left: str, right: str) -> str:
        """Compare the keys of two tables that have these columns."""
        return " AND ".join(f"{left}.{column} = {right}.{column}" for column in self.key)


def quote(name: str) -> str:
    """Write a name so that SQL takes it letter for letter."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Write a text as a constant; a backslash escapes in Snowflake's constants."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
