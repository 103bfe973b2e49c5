from __future__ import annotations

import datetime
import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.pubsub.encoding import ROW_SCHEMA
from penstock.pubsub.source.columns import Columns, attribute_values, attributes_json, event_times

MAP = ROW_SCHEMA.field("attributes").type
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MAPS = st.lists(st.none() | st.dictionaries(TEXT, TEXT, max_size=4), max_size=8)


def maps(values: list[dict[str, str] | None]) -> pa.MapArray:
    return pa.array([None if v is None else list(v.items()) for v in values], MAP)


def moments(*texts: str) -> list[datetime.datetime | None]:
    times = event_times(maps([{"at": text} for text in texts]), "at")
    return [None if v is None else v.astimezone(datetime.UTC) for v in times.to_pylist()]


@given(MAPS)
def test_attributes_as_json_are_the_same_attributes(values: list[dict[str, str] | None]) -> None:
    texts = attributes_json(maps(values)).to_pylist()
    assert [None if t is None else json.loads(t) for t in texts] == [v or None for v in values]


@given(MAPS, TEXT, st.integers(0, 8))
def test_one_attribute_of_each_message_is_found(
    values: list[dict[str, str] | None], name: str, start: int
) -> None:
    found = attribute_values(maps(values).slice(start), name).to_pylist()
    assert found == [(v or {}).get(name) for v in values[start:]]


def test_event_times_are_read_from_milliseconds_and_rfc_3339() -> None:
    expected = datetime.datetime(2026, 2, 3, 4, 5, 6, 123000, datetime.UTC)
    millis = str(int(expected.timestamp() * 1000))

    assert (
        moments(millis, "2026-02-03T04:05:06.123Z", "2026-02-03t06:05:06.123000999+02:00")
        == [expected] * 3
    )


def test_what_is_not_a_time_gives_null() -> None:
    assert (
        moments("", "soon", "2026-02-30T00:00:00Z", "2026-02-03T04:05:06", "99999999999999999")
        == [None] * 5
    )


def test_databricks_columns_have_that_connectors_names_and_types() -> None:
    time = datetime.datetime(2026, 1, 1, 0, 0, 0, 1999, datetime.UTC)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(["1"]),
            pa.array([time], ROW_SCHEMA.field("publish_time").type),
            pa.array([b"x"]),
            maps([{"a": "b"}]),
            pa.array(["key"]),
            pa.array([None], pa.int32()),
        ],
        schema=ROW_SCHEMA,
    )
    converted = Columns(is_databricks=True).convert(rows)

    assert converted.to_pylist() == [
        {
            "messageId": "1",
            "payload": b"x",
            "attributes": '{"a":"b"}',
            "publishTimestampInMillis": 1767225600001,
        }
    ]
