"""The columns that a streaming query sees: our own, or those of the Databricks connector; pure.

Whole columns are converted at once. Runs in workers, and on the driver for the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pubsub.encoding import ROW_SCHEMA, SPARK_DDL, map_spans

DATABRICKS_DDL = (
    "messageId string, payload binary, attributes string, publishTimestampInMillis bigint"
)
EVENT_TIME_DDL = "event_time timestamp"
_TIME = ROW_SCHEMA.field("publish_time").type
# What JSON demands to be escaped and Arrow's text may hold, apart from control characters.
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


@dataclass(frozen=True)
class Columns:
    """Which columns a query has asked for; picklable."""

    is_databricks: bool = False
    timestamp_attribute: str | None = None

    @property
    def ddl(self) -> str:
        """The schema in Spark's words."""
        ddl = DATABRICKS_DDL if self.is_databricks else SPARK_DDL
        return ddl if self.timestamp_attribute is None else f"{ddl}, {EVENT_TIME_DDL}"

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [field.split(" ")[0] for field in self.ddl.split(", ")]

    def convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Turn rows as they came from the service into the columns asked for."""
        converted = _databricks(rows) if self.is_databricks else rows
        if self.timestamp_attribute is None:
            return converted
        times = event_times(rows.column("attributes"), self.timestamp_attribute)
        return converted.append_column(pa.field("event_time", _TIME), times)


def columns_of(raw: Mapping[str, str]) -> Columns:
    """Find out from options that are not parsed yet which columns a query has asked for."""
    given = {key.lower(): value for key, value in raw.items()}
    style = given.get("schemastyle", "").strip().lower()
    return Columns(style == "databricks", given.get("timestampattribute"))


def attribute_values(attributes: pa.MapArray, name: str) -> pa.StringArray:
    """Give one attribute of each message; null where it is absent."""
    offsets, keys, items = map_spans(attributes)
    found = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
    rows = np.searchsorted(offsets, found, side="right") - 1
    where = np.full(len(attributes), -1, np.int64)
    where[rows] = found
    return items.take(pa.array(where, mask=where < 0))


def event_times(attributes: pa.MapArray, name: str) -> pa.TimestampArray:
    """Read times out of an attribute: milliseconds since the epoch, or RFC 3339.

    Null where the attribute is absent or is neither; a message must not stop a query for ever.
    """
    texts = attribute_values(attributes, name)
    is_millis = pc.match_substring_regex(texts, r"^-?[0-9]{1,15}$")
    micros = pc.multiply(pc.if_else(is_millis, texts, None).cast(pa.int64()), 1000)
    is_written = pc.match_substring_regex(
        texts,
        r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt ]"
        r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$",
    )
    written = pc.ascii_upper(pc.if_else(is_written, texts, None))
    # Arrow refuses digits beyond its unit; microseconds are what Spark holds.
    written = pc.replace_substring_regex(written, r"(\.[0-9]{6})[0-9]+", r"\1")
    return pc.coalesce(micros.view(_TIME), _parse_written(written))


def _parse_written(texts: pa.StringArray) -> pa.TimestampArray:
    try:
        return texts.cast(_TIME)
    except pa.ArrowInvalid:
        # A day such as 30 February somewhere among them. Rare, so one at a time.
        return pa.array([_parse_one(text.as_py()) for text in texts], _TIME)


def _parse_one(text: str | None) -> pa.TimestampScalar | None:
    try:
        return pa.scalar(text).cast(_TIME).as_py()
    except pa.ArrowInvalid:
        return None


def _databricks(rows: pa.RecordBatch) -> pa.RecordBatch:
    millis = pc.divide(rows.column("publish_time").cast(pa.int64()), 1000)
    return pa.RecordBatch.from_arrays(
        [
            rows.column("message_id"),
            rows.column("data"),
            attributes_json(rows.column("attributes")),
            millis,
        ],
        schema=pa.schema(
            [
                pa.field("messageId", pa.string()),
                pa.field("payload", pa.binary()),
                pa.field("attributes", pa.string()),
                pa.field("publishTimestampInMillis", pa.int64()),
            ]
        ),
    )


def attributes_json(attributes: pa.MapArray) -> pa.StringArray:
    """Write each message's attributes as a JSON object; null where there are none."""
    offsets, keys, items = map_spans(attributes)
    quote = pa.scalar('"')
    entries = pc.binary_join_element_wise(
        quote, _escape(keys), pa.scalar('":"'), _escape(items), quote, ""
    )
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), entries)
    joined = pc.binary_join(lists, ",")
    objects = pc.binary_join_element_wise(pa.scalar("{"), joined, pa.scalar("}"), "")
    return pc.if_else(pa.array(np.diff(offsets) == 0), pa.scalar(None, pa.string()), objects)


def _escape(texts: pa.StringArray) -> pa.StringArray:
    for plain, escaped in _ESCAPES:
        texts = pc.replace_substring(texts, plain, escaped)
    has_control = pc.match_substring_regex(texts, "[\\x00-\\x1f]")
    if pc.any(has_control).as_py():
        for number in range(0x20):
            texts = pc.replace_substring(texts, chr(number), f"\\u{number:04x}")
    return texts
