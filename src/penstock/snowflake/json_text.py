"""The JSON text of Arrow values, a column at a time; runs in workers, pure."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_TEXT = pa.large_string()
# In brackets, a text cannot go on in the next line, be empty, or be two documents.
_DOCUMENTS = msgspec.json.Decoder(tuple[msgspec.Raw])
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_MICRO, _LAST_MICRO = -62_135_596_800_000_000, 253_402_300_799_999_999

NON_FINITE = "has NaN or an infinity"
OUT_OF_RANGE = "has a date or timestamp outside the years 1 to 9999"


@dataclass
class Unfit:
    """Collects which rows hold a value inside that has no place in JSON."""

    non_finite: str = "keep"
    out_of_range: str = "refuse"
    rows: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, reason: str, rows: np.ndarray) -> None:
        """Note rows of the column."""
        if len(rows):
            self.rows[reason] = np.union1d(self.rows.get(reason, rows), rows)


def quoted(text: str) -> str:
    """Write one text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def joined(lines: pa.Array) -> bytes:
    """Give the bytes of texts, one after the other."""
    lines = pa.concat_arrays([lines.cast(_TEXT)])
    if not len(lines):
        return b""
    _, offsets, data = lines.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return bytes(memoryview(data)[bounds[0] : bounds[-1]])


def times(column: pa.Array, unfit: Unfit, rows: np.ndarray | None = None) -> pa.Array:
    """Write dates and timestamps: ISO, six digits, and the offset of those that have a zone."""
    if rows is None:
        rows = np.arange(len(column))
    if pa.types.is_date32(column.type):
        days = _ranged(column, pa.int32(), _FIRST_DAY, _LAST_DAY, unfit, rows)
        return pc.cast(days, _TEXT)
    has_zone = column.type.tz is not None
    micros = column.cast(pa.timestamp("us", tz="UTC" if has_zone else None))
    micros = _ranged(micros, pa.int64(), _FIRST_MICRO, _LAST_MICRO, unfit, rows)
    texts = pc.cast(micros.cast(pa.int64()).cast(pa.timestamp("us")), _TEXT)
    return _concat(texts, "+00:00") if has_zone else texts


def hexes(column: pa.Array) -> pl.Series:
    """Write binaries as hex."""
    return pl.Series(column).bin.encode("hex")


def plain_texts(column: pa.Array) -> pa.Array:
    """Write times and durations."""
    if pa.types.is_time(column.type):
        return pc.cast(column.cast(pa.time64("us")), _TEXT)
    micros = pl.Series(column.cast(pa.duration("us")).cast(pa.int64()))
    size = micros.abs()
    frame = pl.DataFrame({"m": micros, "s": size // 1_000_000, "f": size % 1_000_000})
    text = pl.format("PT{}.{}S", "s", pl.col("f").cast(pl.String).str.zfill(6))
    signed = pl.when(pl.col("m") < 0).then(pl.lit("-") + text).otherwise(text)
    return frame.select(pl.when(pl.col("m").is_not_null()).then(signed)).to_series().to_arrow()


def of_variants(column: pa.Array) -> pa.Array:
    """Give the JSON of Spark's VARIANT values, one by one: nothing does it for a column."""
    from pyspark.sql.types import VariantVal

    values = column.field("value").to_pylist()
    metadata = column.field("metadata").to_pylist()
    is_null = column.is_null().to_pylist()
    return pa.array(
        [
            "null" if absent else VariantVal(value, meta).toJson()
            for absent, value, meta in zip(is_null, values, metadata, strict=True)
        ],
        _TEXT,
    )


def of_documents(column: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Give texts that are JSON on one line each, and which of them are none."""
    # Line ends can only be between a document's tokens: inside its strings they are escaped.
    texts = pc.replace_substring_regex(column.cast(_TEXT), r"[\r\n]", " ")
    texts = pc.fill_null(texts, "null")
    documents = texts.to_pylist()
    if _are_documents(documents):
        return texts, None
    is_unfit = np.array([not _are_documents([document]) for document in documents], dtype=bool)
    if not is_unfit.any():
        return texts, None
    mask = pa.array(is_unfit)
    return pc.if_else(mask, pa.scalar("null", _TEXT), texts), mask


def _are_documents(texts: list[str]) -> bool:
    try:
        lines = "\n".join(f"[{text}]" for text in texts)
        return len(_DOCUMENTS.decode_lines(lines)) == len(texts)
    except msgspec.DecodeError:  # and of its kind: a wrong number of documents
        return False


def of_values(
    column: pa.Array, unfit: Unfit | None = None, rows: np.ndarray | None = None
) -> pa.Array:
    """Give the JSON text of each value of a column, whatever its type; `null` of a null.

    Args:
        column: the values.
        unfit: takes the rows that hold what JSON has not.
        rows: for each value its row in the column of the table; without it, its position.
    """
    unfit = unfit or Unfit()
    if rows is None:
        rows = np.arange(len(column))
    kind = column.type
    if pa.types.is_map(kind):
        return _maps(column, unfit, rows)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column, unfit, rows)
    if pa.types.is_struct(kind):
        if (
            kind.num_fields == 2
            and {kind[0].name, kind[1].name} == {"value", "metadata"}
            and ((kind[0].metadata or kind[1].metadata or {}).get(b"variant") == b"true")
        ):
            return of_variants(column)
        return _structs(column, unfit, rows)
    return _leaves(column, unfit, rows)


def _concat(*pieces: pa.Array | str) -> pa.Array:
    parts = [
        pa.scalar(piece, _TEXT) if isinstance(piece, str) else piece.cast(_TEXT) for piece in pieces
    ]
    return pc.binary_join_element_wise(*parts, pa.scalar("", _TEXT))


def _regrouped(texts: pa.Array, offsets: np.ndarray, brackets: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts.cast(_TEXT))
    joined_texts = pc.binary_join(lists, pa.scalar(",", _TEXT))
    return _concat(brackets[0], joined_texts, brackets[1])


def _or_null(column: pa.Array, texts: pa.Array) -> pa.Array:
    if not column.null_count:
        return texts
    return pc.if_else(pc.is_null(column), pa.scalar("null", _TEXT), texts)


def _lists(column: pa.Array, unfit: Unfit, rows: np.ndarray) -> pa.Array:
    # Without nulls, whose offsets may span values that are not theirs.
    lists = pc.if_else(pc.is_null(column), pa.scalar([], column.type), column) if (
        column.null_count
    ) else column  # fmt: skip
    counts = np.asarray(pc.list_value_length(lists), dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    values = of_values(lists.flatten(), unfit, np.repeat(rows, counts))
    return _or_null(column, _regrouped(values, offsets, "[]"))


def _maps(column: pa.Array, unfit: Unfit, rows: np.ndarray) -> pa.Array:
    starts = np.asarray(column.offsets, dtype=np.int64)
    is_null = np.asarray(column.is_null())
    counts = np.where(is_null, 0, np.diff(starts))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    # Entries of null maps, and those before and after this slice, are not ours.
    wanted = np.repeat(starts[:-1] - offsets[:-1], counts) + np.arange(offsets[-1])
    take = pa.array(wanted, pa.int64())
    owners = np.repeat(rows, counts)
    keys = of_values(column.keys.take(take), unfit, owners)
    is_text = pa.types.is_string(column.type.key_type) or pa.types.is_large_string(
        column.type.key_type
    )
    if not is_text:
        bare = pc.utf8_trim(keys, '"')
        keys = _concat('"', bare, '"')
    values = of_values(column.items.take(take), unfit, owners)
    return _or_null(column, _regrouped(_concat(keys, ":", values), offsets, "{}"))


def _structs(column: pa.Array, unfit: Unfit, rows: np.ndarray) -> pa.Array:
    pieces: list[pa.Array | str] = []
    for position, child in enumerate(column.type):
        pieces += [
            f"{',' if position else '{'}{quoted(child.name)}:",
            of_values(_field(column, position), unfit, rows),
        ]
    texts = _concat(*pieces, "}") if pieces else pa.repeat(pa.scalar("{}", _TEXT), len(column))
    return _or_null(column, texts)


def _field(column: pa.Array, position: int) -> pa.Array:
    values = column.field(position)
    if column.null_count:
        # What stands under a null struct is not a value.
        values = pc.if_else(pc.is_null(column), pa.scalar(None, values.type), values)
    return values


def _leaves(column: pa.Array, unfit: Unfit, rows: np.ndarray) -> pa.Array:
    kind = column.type
    if pa.types.is_decimal(kind):
        return pc.fill_null(pc.cast(column, _TEXT), "null")
    if pa.types.is_floating(kind):
        return _floats(column, unfit, rows)
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        column = times(column, unfit, rows)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _encoded(hexes(column))
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        column = plain_texts(column)
    return _encoded(pl.Series(column))


def _encoded(values: pl.Series) -> pa.Array:
    frame = values.alias("x").to_frame()
    texts = frame.select(pl.struct("x").struct.json_encode()).to_series()
    return texts.str.strip_prefix('{"x":').str.strip_suffix("}").to_arrow().cast(_TEXT)


def _floats(column: pa.Array, unfit: Unfit, rows: np.ndarray) -> pa.Array:
    values = pl.Series(column).cast(pl.Float64)
    if values.is_finite().all():
        return _encoded(values)
    is_other = (~values.is_finite()).fill_null(value=False)
    if unfit.non_finite == "refuse":
        unfit.add(NON_FINITE, rows[is_other.to_numpy()])
    texts = _encoded(values)
    if unfit.non_finite == "null":
        return texts
    names = _concat('"', values.cast(pl.String).to_arrow(), '"')
    return pc.if_else(is_other.to_arrow(), names, texts)


def _ranged(
    column: pa.Array, kind: pa.DataType, low: int, high: int, unfit: Unfit, rows: np.ndarray
) -> pa.Array:
    numbers = column.cast(kind)
    least, most = pc.min_max(numbers).as_py().values()
    if unfit.out_of_range == "keep" or least is None or (least >= low and most <= high):
        return column
    is_unfit = pc.fill_null(
        pc.or_(pc.less(numbers, low), pc.greater(numbers, high)), fill_value=False
    )
    if unfit.out_of_range == "clamp":
        numbers = pc.max_element_wise(
            pc.min_element_wise(numbers, pa.scalar(high, kind), skip_nulls=False),
            pa.scalar(low, kind), skip_nulls=False,
        )  # fmt: skip
    else:
        if unfit.out_of_range == "refuse":
            unfit.add(OUT_OF_RANGE, rows[np.asarray(is_unfit)])
        numbers = pc.if_else(is_unfit, pa.scalar(None, kind), numbers)
    return numbers.cast(column.type)


def lines(
    frame: pl.DataFrame, raw: list[tuple[str, pa.Array]], count: int, fitting: np.ndarray | None
) -> bytes:
    """Write rows as lines: plain columns by polars, and columns whose JSON text is known.

    A text that is null is left out of its line.
    """
    if not raw:
        if fitting is not None:
            frame = frame.filter(fitting)
        target = io.BytesIO()
        frame.write_ndjson(target)
        return target.getvalue()
    pieces: list[pa.Array | str]
    if frame.width:
        heads = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series()
        pieces = [heads.str.strip_suffix("}").to_arrow()]
    else:
        pieces = [pa.repeat(pa.scalar("{", _TEXT), count)]
    for name, texts in raw:
        pieces.append(pc.fill_null(_concat(f",{quoted(name)}:", texts), ""))
    whole = _concat(*pieces, "}\n")
    if not frame.width:
        whole = pc.replace_substring_regex(whole, r"^\{,", "{", max_replacements=1)
    if fitting is not None:
        whole = whole.filter(pa.array(fitting))
    return joined(whole)


def rows_as_documents(names: list[str], batch: pa.RecordBatch) -> pa.Array:
    """Give each row as one JSON object, whatever its values are."""
    keep = Unfit("keep", "keep")
    pieces: list[pa.Array | str] = []
    for position, (name, column) in enumerate(zip(names, batch.columns, strict=True)):
        pieces += [f"{',' if position else '{'}{quoted(name)}:", of_values(column, keep)]
    return _concat(*pieces, "}")
