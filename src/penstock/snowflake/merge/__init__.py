"""Applies landed change rows to their target table, by the driver or by a Snowflake task."""

from penstock.snowflake.merge.apply import apply_merge, recover_merge
from penstock.snowflake.merge.plan import MergeColumn, MergePlan, MetaColumns
from penstock.snowflake.merge.run import MergeResult
from penstock.snowflake.merge.statements import Statement, Step, merge_statements

__all__ = [
    "MergeColumn",
    "MergePlan",
    "MergeResult",
    "MetaColumns",
    "Statement",
    "Step",
    "apply_merge",
    "merge_statements",
    "recover_merge",
]
