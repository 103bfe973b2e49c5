"""Whether rows of the WAL fit the columns that a query has, and which goes where; pure.

Runs in the task. Values come as text, so a row is read by the names of its columns at the time it
was written: what does not fit is an error that says what changed, never a row misread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.errors import SchemaError
from penstock.postgres.pgoutput import Relation
from penstock.postgres.source.columns import PlannedColumn, TablePlan

# oid of text, varchar, bpchar, name; of int2, int4, int8; of uuid, json, jsonb.
_TEXTS = frozenset({25, 1043, 1042, 19})
_INTEGERS = (21, 23, 20)
_AS_TEXT = _TEXTS | {*_INTEGERS, 2950, 114, 3802}
# Type now -> types before, whose every text is a text of the type now, and means the same. Neither
# numeric nor float8 is here: a scale might round, and the digits of a float4 are its own.
_WIDENED: dict[int, frozenset[int]] = {
    23: frozenset({21}),
    20: frozenset({21, 23}),
    25: _AS_TEXT,
    1043: _AS_TEXT,
}


class TableNow(Protocol):
    """The table of a relation, as the server has it at this moment; asked before an error."""

    def has_any(self, names: Sequence[str]) -> bool:
        """Tell whether it has any of these columns."""

    def alterations(self, plan: TablePlan, relation: Relation) -> Sequence[str]:
        """Write the DDL that lies between the rows and the query; empty if it cannot be known."""


def match_columns(
    plan: TablePlan,
    relation: Relation,
    now: TableNow,
    *,
    evolves: bool,
) -> list[int | None]:
    """Give for each column of the plan its place in the relation; None where it has none.

    A column that the relation does not have yet is null: it was added after these rows.

    Args:
        plan: the columns of the query.
        relation: the columns of the rows.
        now: the table as it is. Asked for columns that the query does not have: they were added
            since it was started, or dropped before.
        evolves: whether columns that were dropped are left out, and widened types are read.

    Raises:
        SchemaError: the relation has a column more, or a column of another type.
    """
    places = {column.name: index for index, column in enumerate(relation.columns)}
    planned = {column.name for column in plan.columns}
    more = [name for name in places if name not in planned]
    fewer = [column.name for column in plan.columns if column.name not in places]
    if more and (fewer or not evolves or now.has_any(more)):
        raise _changed(plan, relation, now, more, fewer)
    for column in plan.columns:
        place = places.get(column.name)
        if place is None:
            continue
        before = relation.columns[place].type_oid
        if before != column.type_oid and not (evolves and _is_widened(column, before)):
            raise SchemaError(
                "SCHEMA_CHANGED",
                f"Column '{column.name}' of table '{plan.table.full_name}'",
                f"has another type in the WAL than in the query: {_told(plan, relation, now)}",
                "Restart the query, so that it reads the table's new definition, with "
                "onSchemaChange=evolve if the type was widened; otherwise take a new snapshot "
                "with a new checkpointLocation and a new slot",
            )
    return [places.get(column.name) for column in plan.columns]


def _is_widened(column: PlannedColumn, before: int) -> bool:
    return before in _WIDENED.get(column.type_oid, frozenset())


def _told(plan: TablePlan, relation: Relation, now: TableNow) -> str:
    statements = now.alterations(plan, relation)
    if not statements:
        return "ALTER TABLE was run more than once"
    return "; ".join(statements[:5]) + (" ..." if len(statements) > 5 else "")


def _changed(
    plan: TablePlan, relation: Relation, now: TableNow, more: list[str], fewer: list[str]
) -> SchemaError:
    name = relation.full_name
    if more and fewer:
        fact = f"rows in the WAL have {_quoted(more)}, the query has {_quoted(fewer)}: " + _told(
            plan, relation, now
        )
        remedy = (
            "Take a new snapshot with a new checkpointLocation and a new slot: which value belongs "
            "to which column cannot be told. To rename without that, stop the query when it has "
            "caught up, rename, and start it again before the next write"
        )
    else:
        fact = f"rows in the WAL have {_quoted(more)}, which the query does not have: " + _told(
            plan, relation, now
        )
        remedy = (
            "Restart the query: added columns are then part of it, and with "
            "onSchemaChange=evolve dropped ones are left out"
        )
    return SchemaError("SCHEMA_CHANGED", f"Table '{name}'", fact, remedy)


def _quoted(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
