"""Makes a plan from what the tables are, and the target ready for it; driver.

Columns that the landing table has and the target lacks are added, and numbers and texts that became
longer are widened. Nothing is dropped or narrowed, and no other type is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import ResourceError, SchemaError
from penstock.snowflake.merge.errors import translated
from penstock.snowflake.merge.plan import MergeColumn, MergePlan, MetaColumns
from penstock.snowflake.merge.work import quote

_TYPE = re.compile(r"(?P<base>[A-Z_ ]+?)\s*(?:\((?P<size>[\d, ]+)\))?")


def prepare_merge(
    connection: Any,
    target: str,
    landing: str,
    key: Sequence[str],
    *,
    meta: MetaColumns | None = None,
    source_names: Mapping[str, str] | None = None,
    is_evolving: bool = True,
) -> MergePlan:
    """Read both tables, change the target if it has to be, and make the plan.

    Called on the driver, before the first merge and whenever the landing table was changed.

    Args:
        connection: of snowflake.connector.
        target: the target, quoted and qualified.
        landing: the landing table, quoted and qualified.
        key: the key columns.
        meta: how the change stream's own columns are called.
        source_names: by column, how `_unchanged` spells it, where it differs.
        is_evolving: the target may be changed.

    Raises:
        ResourceError: the landing table is not one.
        SchemaError: a column's types do not fit, or the target would have to be changed.
    """
    meta = meta or MetaColumns()
    landed = describe(connection, landing)
    there = describe(connection, target)
    missing = [name for name in meta.names() if name not in landed]
    if missing:
        raise ResourceError(
            "LANDING_TABLE",
            f"Landing table {landing}",
            f"columns {json.dumps(missing)} are missing",
            "Give another table as landing table, or drop it and let the sink create it",
        )
    own = {*meta.names(), *meta.unused}
    columns = [MergeColumn(name, type_) for name, type_ in landed.items() if name not in own]
    if source_names:
        columns = [replace(c, source_name=source_names.get(c.name, c.name)) for c in columns]
    plan = MergePlan(target, landing, tuple(key), tuple(columns), meta)
    statements = evolve_statements(plan, there)
    if statements and not is_evolving:
        raise SchemaError(
            "TARGET_TABLE",
            f"Target table {target}",
            "it lacks columns of the rows, or has them too short",
            f"Set option 'evolveSchema', or run: {'; '.join(statements)}",
        )
    for statement in statements:
        _execute(connection, statement, f"Target table {target}")
    return plan


def describe(connection: Any, table: str) -> dict[str, str]:
    """Read a table's columns: name to type, in their order."""
    rows = _execute(connection, f"DESCRIBE TABLE {table}", f"Table {table}")
    # name, type, kind, ...
    return {str(row[0]): str(row[1]) for row in rows if row[2] == "COLUMN"}


def evolve_statements(plan: MergePlan, target_columns: Mapping[str, str]) -> list[str]:
    """Write what makes the target fit the plan; nothing if it does.

    Raises:
        SchemaError: a column has another type in the target.
    """
    statements: list[str] = []
    for column in plan.columns:
        there = target_columns.get(column.name)
        table = f"ALTER TABLE {plan.target}"
        if there is None:
            statements.append(
                f"{table} ADD COLUMN IF NOT EXISTS {quote(column.name)} {column.type}"
            )
            continue
        wider = _wider(plan, column, there)
        if wider is not None:
            statements.append(f"{table} ALTER COLUMN {quote(column.name)} SET DATA TYPE {wider}")
    return statements


def _wider(plan: MergePlan, column: MergeColumn, there: str) -> str | None:
    """Give the type that the target's column has to get; None if it fits."""
    base, size = _parts(column.type)
    there_base, there_size = _parts(there)
    is_fitting = base == there_base and size[1:] == there_size[1:]
    if is_fitting and size[:1] <= there_size[:1]:
        return None
    if is_fitting and base in {"NUMBER", "VARCHAR", "BINARY"}:
        return column.type
    raise SchemaError(
        "MERGE_TYPE",
        f"Column {quote(column.name)} of target table {plan.target}",
        f"it is {there}, and {column.type} in the landing table",
        "Change the type of one of them by hand: a merge widens numbers and texts, and no more",
    )


def _parts(type_: str) -> tuple[str, tuple[int, ...]]:
    match = _TYPE.fullmatch(type_.upper())
    if match is None:
        return type_.upper(), ()
    size = match["size"]
    return match["base"], tuple(int(part) for part in size.split(",")) if size else ()


def _execute(connection: Any, sql: str, subject: str) -> list[Any]:
    with translated(subject), connection.cursor() as cursor:
        rows: list[Any] = cursor.execute(sql).fetchall()
    return rows
