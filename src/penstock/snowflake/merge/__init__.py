"""Applies landed change rows to their target table, by the driver or by a Snowflake task."""

from penstock.snowflake.merge.apply import apply_merge, recover_merge
from penstock.snowflake.merge.evolve import evolve_statements, prepare_merge
from penstock.snowflake.merge.plan import MergeColumn, MergePlan, MetaColumns
from penstock.snowflake.merge.run import MergeResult
from penstock.snowflake.merge.schedule import MergeTask, drop_task, ensure_task, parse_schedule
from penstock.snowflake.merge.statements import Statement, Step, merge_statements

__all__ = [
    "MergeColumn",
    "MergePlan",
    "MergeResult",
    "MergeTask",
    "MetaColumns",
    "Statement",
    "Step",
    "apply_merge",
    "drop_task",
    "ensure_task",
    "evolve_statements",
    "merge_statements",
    "parse_schedule",
    "prepare_merge",
    "recover_merge",
]
