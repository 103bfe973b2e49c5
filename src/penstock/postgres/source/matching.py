"""Whether rows of the WAL fit the columns that a query has, and which goes where; pure.

Runs in the task. Values come as text, so a row is read by the names of its columns at the time it
was written: what does not fit is an error that says what changed, never a row misread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def match_columns(
    plan: TablePlan,
    relation: Relation,
    exist_now: Callable[[Sequence[str]], bool],
    *,
    evolves: bool,
) -> list[int | None]:
    """Give for each column of the plan its place in the relation; None where it has none.

    A column that the relation does not have yet is null: it was added after these rows.

    Args:
        plan: the columns of the query.
        relation: the columns of the rows.
        exist_now: whether the table has any of these columns now. Asked only of columns that the
            query does not have: they were added since it was started, or dropped before.
        evolves: whether columns that were dropped are left out, and widened types are read.

    Raises:
        SchemaError: the relation has a column more, or a column of another type.
    """
    places = {column.name: index for index, column in enumerate(relation.columns)}
    planned = {column.name for column in plan.columns}
    more = [name for name in places if name not in planned]
    fewer = [column.name for column in plan.columns if column.name not in places]
    if more and (fewer or not evolves or exist_now(more)):
        raise _changed(relation, more, fewer)
    for column in plan.columns:
        place = places.get(column.name)
        if place is None:
            continue
        before = relation.columns[place].type_oid
        if before != column.type_oid and not (evolves and _is_widened(column, before)):
            raise SchemaError(
                "SCHEMA_CHANGED",
                f"Column '{column.name}' of table '{plan.table.full_name}'",
                f"rows in the WAL have type oid {before}, and the query has oid {column.type_oid}:"
                " ALTER TABLE ... ALTER COLUMN ... TYPE was run",
                "Restart the query, so that it reads the table's new definition, with "
                "onSchemaChange=evolve if the type was widened; otherwise take a new snapshot "
                "with a new checkpointLocation and a new slot",
            )
    return [places.get(column.name) for column in plan.columns]


def _is_widened(column: PlannedColumn, before: int) -> bool:
    return before in _WIDENED.get(column.type_oid, frozenset())


def _changed(relation: Relation, more: list[str], fewer: list[str]) -> SchemaError:
    name = relation.full_name
    if more and fewer:
        fact = (
            f"rows in the WAL have {_quoted(more)}, the query has {_quoted(fewer)}: columns were "
            "renamed, or dropped and added"
        )
        remedy = (
            "Take a new snapshot with a new checkpointLocation and a new slot: which value belongs "
            "to which column cannot be told. To rename without that, stop the query when it has "
            "caught up, rename, and start it again before the next write"
        )
    else:
        fact = (
            f"rows in the WAL have {_quoted(more)}, which the query does not have: added since it "
            "was started, or dropped before"
        )
        remedy = (
            "Restart the query: added columns are then part of it, and with "
            "onSchemaChange=evolve dropped ones are left out"
        )
    return SchemaError("SCHEMA_CHANGED", f"Table '{name}'", fact, remedy)


def _quoted(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
