"""Arrow batches as JSON lines for Snowpipe Streaming; runs in workers, pure.

Vectorised: polars writes the plain columns, Arrow's kernels make the text of nested ones. Values
that do not fit their column are found here, before anything is sent, so that their position is
known exactly. Never turns a value into null in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.snowflake import json_text
from penstock.snowflake.types import LONGEST_BINARY, LONGEST_TEXT, SnowType


@dataclass(frozen=True)
class ColumnPlan:
    """How one column of the DataFrame is sent. Picklable."""

    # As in the table, in its own case.
    name: str
    type: SnowType
    is_nullable: bool = True
    # A text that holds JSON.
    is_json: bool = False
    # Spark's VARIANT, which Arrow carries as a struct of two binaries.
    is_variant: bool = False


@dataclass(frozen=True)
class ValuePolicy:
    """What becomes of values that a column has not. Picklable."""

    non_finite: str = "keep"
    out_of_range: str = "refuse"


@dataclass(frozen=True)
class Flaw:
    """Why rows do not fit: the first reason of each row."""

    column: str
    reason: str


@dataclass(frozen=True)
class Encoded:
    """JSON lines of a batch's rows, and the rows that do not fit."""

    # One line for each fitting row, each with its line end.
    data: bytes
    # Index into `reasons` plus one for each row of the batch; 0 fits. None if all do.
    flaws: np.ndarray | None
    reasons: tuple[Flaw, ...]


class Encoder:
    """Encodes batches of one schema."""

    def __init__(self, columns: Sequence[ColumnPlan], policy: ValuePolicy | None = None) -> None:
        self._columns = tuple(columns)
        self._policy = policy or ValuePolicy()

    def encode(self, batch: pa.RecordBatch, extra: pl.DataFrame | None = None) -> Encoded:
        """Encode a batch; `extra` are columns of ours, one row for each row of the batch."""
        marks = _Marks(batch.num_rows)
        plain: list[pl.Series] = []
        raw: list[tuple[str, pa.Array]] = []
        for plan, column in zip(self._columns, batch.columns, strict=True):
            value = self._prepare(plan, column, marks)
            if isinstance(value, pl.Series):
                plain.append(value.alias(plan.name))
            else:
                # A null is left out of the line: a JSON null in a VARIANT is a value.
                is_null = pc.is_null(column)
                raw.append((plan.name, pc.if_else(is_null, pa.scalar(None, value.type), value)))
        frame = pl.DataFrame(plain) if plain else pl.DataFrame()
        if extra is not None:
            frame = frame.hstack(extra) if plain else extra
        return Encoded(
            json_text.lines(frame, raw, batch.num_rows, marks.fitting),
            marks.codes,
            tuple(marks.reasons),
        )

    def _prepare(self, plan: ColumnPlan, column: pa.Array, marks: _Marks) -> pl.Series | pa.Array:
        """Give a column as polars writes it, or the JSON text of each of its values."""
        if not plan.is_nullable and column.null_count:
            marks.add(pc.is_null(column), plan.name, "is NULL, and the column is NOT NULL")
        if plan.is_variant:
            return json_text.of_variants(column)
        if plan.is_json:
            texts, is_unfit = json_text.of_documents(column)
            if is_unfit is not None:
                marks.add(is_unfit, plan.name, "is no JSON document")
            return texts
        unfit = json_text.Unfit(self._policy.non_finite, self._policy.out_of_range)
        value = self._convert(plan, column, unfit, marks)
        for reason, rows in unfit.rows.items():
            is_unfit = np.zeros(len(column), dtype=bool)
            is_unfit[rows] = True
            marks.add(pa.array(is_unfit), plan.name, reason)
        return value

    def _convert(  # noqa: PLR0911 - one for each kind of type
        self, plan: ColumnPlan, column: pa.Array, unfit: json_text.Unfit, marks: _Marks
    ) -> pl.Series | pa.Array:
        kind = column.type
        if pa.types.is_nested(kind) or plan.type.name == "VARIANT":
            return json_text.of_values(column, unfit)
        if pa.types.is_floating(kind):
            return self._floats(column, unfit)
        if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
            return pl.Series(json_text.times(column, unfit))
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            _check_length(plan, pc.binary_length(column), LONGEST_BINARY, "bytes", marks)
            return json_text.hexes(column)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            if plan.type.name == "VARCHAR" and _is_long(column, plan.type.size):
                _check_length(plan, pc.utf8_length(column), LONGEST_TEXT, "characters", marks)
            return pl.Series(column)
        if pa.types.is_time(kind) or pa.types.is_duration(kind):
            return pl.Series(json_text.plain_texts(column))
        return pl.Series(column)

    def _floats(self, column: pa.Array, unfit: json_text.Unfit) -> pl.Series:
        values = pl.Series(column).cast(pl.Float64)
        if values.is_finite().all():
            return values
        is_other = (~values.is_finite()).fill_null(value=False)
        if self._policy.non_finite == "null":
            return values.to_frame("x").select(pl.when(~is_other).then(pl.col("x"))).to_series()
        if self._policy.non_finite == "refuse":
            unfit.add(json_text.NON_FINITE, np.flatnonzero(is_other.to_numpy()))
        # Texts, which FLOAT reads as these values: JSON has no number for them.
        return values.cast(pl.String)


class _Marks:
    """Which rows do not fit, and why."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.codes: np.ndarray | None = None
        self.reasons: list[Flaw] = []

    def add(self, is_unfit: pa.Array, column: str, reason: str) -> None:
        rows = np.asarray(pc.fill_null(is_unfit, fill_value=False))
        if not rows.any():
            return
        if self.codes is None:
            self.codes = np.zeros(self._count, dtype=np.int32)
        self.reasons.append(Flaw(column, reason))
        self.codes[rows & (self.codes == 0)] = len(self.reasons)

    @property
    def fitting(self) -> np.ndarray | None:
        """Which rows are sent; None is all."""
        return None if self.codes is None else self.codes == 0


def _is_long(column: pa.Array, size: int | None) -> bool:
    # Bytes bound characters, and their greatest number is cheap to have.
    longest = pc.max(pc.binary_length(column)).as_py()
    return longest is not None and longest > min(size or LONGEST_TEXT, LONGEST_TEXT)


def _check_length(plan: ColumnPlan, lengths: pa.Array, most: int, unit: str, marks: _Marks) -> None:
    bound = min(plan.type.size or most, most)
    marks.add(pc.greater(lengths, bound), plan.name, f"has more than {bound} {unit}")
