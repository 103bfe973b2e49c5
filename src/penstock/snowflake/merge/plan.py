"""What a merge is about: two tables, their columns, the key; pure, picklable, runs everywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from penstock.errors import OptionError, SchemaError


@dataclass(frozen=True, slots=True)
class MetaColumns:
    """The names in the landing table of what is not a column of the target."""

    op: str = "_op"
    lsn: str = "_lsn"
    ordinal: str = "_ordinal"
    unchanged: str = "_unchanged"
    channel: str = "_channel"
    offset: str = "_offset"
    # Those that land and are not needed.
    unused: tuple[str, ...] = ("_commit_time", "_xid")

    @classmethod
    def with_prefix(cls, prefix: str) -> MetaColumns:
        """Give the names for another `metaPrefix` of the change stream; the sink's two stay."""
        return cls(
            op=f"{prefix}op",
            lsn=f"{prefix}lsn",
            ordinal=f"{prefix}ordinal",
            unchanged=f"{prefix}unchanged",
            unused=(f"{prefix}commit_time", f"{prefix}xid"),
        )

    def names(self) -> tuple[str, ...]:
        """Give all that a merge needs."""
        return self.op, self.lsn, self.ordinal, self.unchanged, self.channel, self.offset


@dataclass(frozen=True, slots=True)
class MergeColumn:
    """A column of the target; the landing table has one of the same name."""

    name: str
    # As Snowflake writes it: `NUMBER(19,0)`.
    type: str
    # As `_unchanged` spells it; empty: like `name`.
    source_name: str = ""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Which landing table is applied to which target, and how.

    Raises:
        OptionError: there is no key, or not all of it is among the columns.
        SchemaError: a column is there twice, or has the name of one of the change stream's.
    """

    # Quoted and qualified, as SQL takes them.
    target: str
    landing: str
    key: tuple[str, ...]
    columns: tuple[MergeColumn, ...]
    meta: MetaColumns = field(default_factory=MetaColumns)

    def __post_init__(self) -> None:
        subject = f"The merge into {self.target}"
        names = [column.name for column in self.columns]
        if not self.key:
            raise OptionError(
                "MERGE_KEY",
                subject,
                "has no key columns",
                "Set option 'keyColumns' to the columns that identify a row, usually the primary "
                "key of the source table",
            )
        missing = [name for name in self.key if name not in names]
        if missing:
            raise OptionError(
                "MERGE_KEY",
                subject,
                f"key columns {json.dumps(missing)} are not columns of the rows",
                f"Correct option 'keyColumns'; the columns are {json.dumps(names)}",
            )
        doubled = sorted({name for name in names if names.count(name) > 1})
        taken = [name for name in names if name in self.meta.names()]
        if doubled or taken:
            raise SchemaError(
                "MERGE_COLUMNS",
                subject,
                f"columns {json.dumps(doubled or taken)} "
                + ("are there twice" if doubled else "have names of the change stream's own"),
                "Rename them, or set option 'metaPrefix' of the source",
            )
