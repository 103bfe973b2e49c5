"""Readers of date, timestamp and timestamptz. Run on executors, pure.

Both systems count in the proleptic Gregorian calendar, but Spark's years are 1 to 9999 and it has
no infinity: what lies outside follows the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.postgres.types.reading import Flags, Reader, as_string, parsed

_DAY_MICROS = 86_400_000_000
# 0001-01-01 and 9999-12-31 as days since 1970.
_FIRST_DAY = -719_162
_LAST_DAY = 2_932_896
_FIRST_MICROS = _FIRST_DAY * _DAY_MICROS
_LAST_MICROS = (_LAST_DAY + 1) * _DAY_MICROS - 1

# ADBC adds the distance from 2000 to 1970 without looking for overflow: infinity (the highest
# number) and dates too late for Arrow wrap to below the number that -infinity becomes.
_DATE_MINUS_INFINITY = -(2**31) + 10_957
_MICROS_MINUS_INFINITY = -(2**63) + 10_957 * _DAY_MICROS

_LATE_TEXT = r"^(infinity|[0-9]{5,}-[^B]*)$"
_EARLY_TEXT = r"(^-infinity| BC)$"
_FACT = "a value lies outside the years 1 to 9999 that Spark has (or is infinity)"


@dataclass(frozen=True)
class TemporalReader(Reader):
    """Text in DateStyle ISO to date32 or timestamp[us]; `arrow` says which, and with which zone."""

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Parse; Arrow refuses all that lies outside the years 1 to 9999."""
        texts = as_string(texts)
        values = parsed(texts, self.arrow)
        if values is not None:
            return values
        late = pc.match_substring_regex(texts, _LATE_TEXT)
        early = pc.match_substring_regex(texts, _EARLY_TEXT)
        values = self.cast(pc.if_else(pc.or_(late, early), None, texts), column)
        return self._settle(values, _flags(early), _flags(late), column)

    def snapshot_sql(self, column: str) -> str:
        """Give the column itself."""
        return column

    def from_snapshot(self, values: pa.Array, column: str) -> pa.Array:
        """Check the range of what ADBC gives, and no more where all is inside."""
        numbers = values.view(pa.int32() if self._is_date else pa.int64())
        first, last = self._limits
        extremes = pc.min_max(numbers)
        lowest, highest = extremes["min"].as_py(), extremes["max"].as_py()
        if lowest is None or (lowest >= first and highest <= last):
            return values
        wrapped = _DATE_MINUS_INFINITY if self._is_date else _MICROS_MINUS_INFINITY
        late = pc.or_(pc.greater(numbers, last), pc.less(numbers, wrapped))
        early = pc.and_(pc.less(numbers, first), pc.greater_equal(numbers, wrapped))
        return self._settle(values, _flags(early), _flags(late), column)

    @property
    def _is_date(self) -> bool:
        return bool(self.arrow == pa.date32())

    @property
    def _limits(self) -> tuple[int, int]:
        return (_FIRST_DAY, _LAST_DAY) if self._is_date else (_FIRST_MICROS, _LAST_MICROS)

    def _settle(self, values: pa.Array, early: Flags, late: Flags, column: str) -> pa.Array:
        if self.out_of_range != "clamp":
            return self.without(values, pa.array(early | late), column, _FACT)
        first, last = self._limits
        for misfits, limit in ((early, first), (late, last)):
            nearest = pa.scalar(limit, pa.int32() if self._is_date else pa.int64())
            values = pc.if_else(pa.array(misfits), nearest.cast(self.arrow), values)
        return values


def _flags(matches: pa.Array) -> Flags:
    return np.asarray(pc.fill_null(matches, fill_value=False).to_numpy(zero_copy_only=False))
