"""Asks the catalog about a table whose rows do not fit the query; runs in the task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.postgres.catalog import has_columns, read_definitions, type_texts
from penstock.postgres.connection import ConnectionSettings, connect_control
from penstock.postgres.pgoutput import Relation
from penstock.postgres.source.alterations import Definition, alterations
from penstock.postgres.source.columns import TablePlan


@dataclass(frozen=True)
class CatalogNow:
    """The table of a relation, as the server has it at this moment."""

    settings: ConnectionSettings
    oid: int

    def has_any(self, names: Sequence[str]) -> bool:
        """Tell whether it has any of these columns."""
        with closing(connect_control(self.settings)) as connection:
            return has_columns(connection, self.oid, names)

    def alterations(self, plan: TablePlan, relation: Relation) -> list[str]:
        """Write the DDL that lies between the rows and the query.

        Rows that are younger than the query: from the query's definition to the table's. Rows that
        are older, where those two are the same: from the rows' columns to the table's.
        """
        table = plan.table
        with closing(connect_control(self.settings)) as connection:
            now = [Definition(*column) for column in read_definitions(connection, self.oid)]
            planned = type_texts(connection, [(c.type.oid, c.type.typmod) for c in table.columns])
            written = type_texts(connection, [(c.type_oid, c.typmod) for c in relation.columns])
        if not now:
            return []
        before = [
            Definition(column.name, text, column.number)
            for column, text in zip(table.columns, planned, strict=True)
        ]
        if set(before) != set(now):
            return alterations(table.schema, table.name, before, now)
        sent = {column.name for column in plan.columns}
        rows = [
            Definition(column.name, text)
            for column, text in zip(relation.columns, written, strict=True)
        ]
        return alterations(
            table.schema, table.name, rows, [column for column in now if column.name in sent]
        )
