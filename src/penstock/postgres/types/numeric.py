"""numeric: which decimal of Spark holds it, and its reader. Runs everywhere, pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.postgres.types.reading import Reader, as_string, parsed

# The most digits of a decimal in Spark and in Arrow's decimal128.
MOST_DIGITS = 38

# Of pg_type.typmod: the length of a varlena header is added to every modifier.
_HEADER_BYTES = 4

_NUMERIC_TEXT = r"^(-?[0-9]+(\.[0-9]+)?|NaN|-?Infinity)$"


@dataclass(frozen=True)
class DecimalShape:
    """Precision and scale as Spark has them: 0 <= scale <= precision <= 38."""

    precision: int
    scale: int


# What unbounded numerics become by option: as many digits on both sides as one can get.
UNBOUNDED_SHAPE = DecimalShape(MOST_DIGITS, 18)


def decimal_shape(typmod: int) -> DecimalShape | None:
    """Give the smallest decimal that holds all values of numeric(p,s); None if there is none."""
    if typmod < _HEADER_BYTES:
        return None
    packed = typmod - _HEADER_BYTES
    precision = (packed >> 16) & 0xFFFF
    # Eleven bits with a sign since PostgreSQL 15; before, scales were 0 to 1000: the same bits.
    scale = ((packed & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        # numeric(3,-2) holds 99900: whole numbers with more digits than its precision.
        precision, scale = precision - scale, 0
    # numeric(3,5) holds 0.00999: fewer digits than its scale.
    precision = max(precision, scale)
    return DecimalShape(precision, scale) if precision <= MOST_DIGITS else None


@dataclass(frozen=True)
class DecimalReader(Reader):
    """Text of digits to decimal128. Never rounds, never wraps."""

    shape: DecimalShape = UNBOUNDED_SHAPE

    def from_text(self, texts: pa.Array, column: str) -> pa.Array:
        """Parse; what does not fit (NaN, Infinity, too many digits) follows the policy."""
        texts = as_string(texts)
        # Arrow does not notice when digits, brought to the scale, exceed its 128 bits: the value
        # wraps (seen with pyarrow 26). It parses only what cannot, or what was found to fit.
        values = parsed(texts, self.arrow) if self._is_safe(texts) else None
        return self._with_misfits(texts, column) if values is None else values

    def _is_safe(self, texts: pa.Array) -> bool:
        lengths = pc.binary_length(texts)
        if (pc.max(lengths).as_py() or 0) + self.shape.scale <= MOST_DIGITS:
            return True
        points = pc.find_substring(texts, ".")
        has_point = pc.greater_equal(points, 0)
        before = pc.if_else(has_point, points, lengths)
        whole = pc.subtract(before, pc.starts_with(texts, "-").cast(pa.int32()))
        fraction = pc.if_else(has_point, pc.subtract(pc.subtract(lengths, points), 1), 0)
        digits = pc.add(whole, pc.max_element_wise(fraction, self.shape.scale))
        return bool((pc.max(digits).as_py() or 0) <= MOST_DIGITS)

    def _with_misfits(self, texts: pa.Array, column: str) -> pa.Array:
        if not pc.all(pc.match_substring_regex(texts, _NUMERIC_TEXT), min_count=0).as_py():
            raise self.unreadable(column)
        # Zeros at the end are PostgreSQL's display scale, not digits that would be lost.
        whole, scale = self.shape.precision - self.shape.scale, self.shape.scale
        shorter = pc.replace_substring_regex(texts, r"(\.[0-9]*?)0+$", r"\1")
        shorter = pc.replace_substring_regex(shorter, r"\.$", "")
        digits = rf"[0-9]{{1,{whole}}}" if whole else "0"
        fitting = pc.match_substring_regex(shorter, rf"^-?{digits}(\.[0-9]{{1,{max(scale, 1)}}})?$")
        if not scale:
            fitting = pc.and_(fitting, pc.invert(pc.match_substring(shorter, ".")))
        fact = (
            f"a value is NaN, infinite or has more digits than"
            f" decimal({self.shape.precision},{self.shape.scale}) holds"
        )
        kept = self.without(shorter, pc.invert(fitting), column, fact)
        return self.cast(kept, column)
