"""Results in the form that the connector reads; runs in the emulator."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from fakesnow.arrow import to_sf


def result_form(table: pa.Table, row_type: list[Any]) -> pa.Table:
    """Give Snowflake's form of a result; fakesnow makes 1970-01-01 of a null timestamp."""
    found = to_sf(table, row_type)
    for index, column in enumerate(table.columns):
        if not pa.types.is_timestamp(column.type) or not column.null_count:
            continue
        # One chunk: fakesnow has joined them.
        parts = found.column(index).combine_chunks()
        field = found.schema.field(index)
        array = pa.StructArray.from_arrays(
            [part.fill_null(0) for part in parts.flatten()],
            fields=list(parts.type),
            mask=column.is_null().combine_chunks(),
        )
        found = found.set_column(index, field, array)
    return found
