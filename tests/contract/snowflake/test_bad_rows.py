"""Rows that do not fit are left out and counted; those that fit are converted as documented."""

# ruff: noqa: S105, S608 - names are of these tests, tokens are no secrets

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from tests.support.snowflake import Lake, append

UTC = dt.timezone.utc  # noqa: UP017 - compared with what the connector gives
LARGE = 12345678901234567890123456789012345678
FITS: list[tuple[str, Any, Any]] = [
    (
        "NUMBER(38,0)",
        12345678901234567890123456789012345678,
        12345678901234567890123456789012345678,
    ),
    ("NUMBER(38,0)", "-5", -5),
    ("NUMBER(10,2)", 1.005, Decimal("1.01")),
    ("NUMBER(10,2)", "-1.005", Decimal("-1.01")),
    ("NUMBER(5,0)", 99999, 99999),
    ("NUMBER(20,4)", 1234567890123456.7891, Decimal("1234567890123456.8")),
    ("NUMBER(20,4)", "1234567890123456.7891", Decimal("1234567890123456.7891")),
    ("FLOAT", 1.5, 1.5),
    ("FLOAT", "inf", math.inf),
    ("FLOAT", "-inf", -math.inf),
    ("BOOLEAN", True, True),
    ("BOOLEAN", "off", False),
    ("VARCHAR(3)", "äöü", "äöü"),
    ("VARCHAR", 5, "5"),
    ("BINARY", "00ff", b"\x00\xff"),
    ("BINARY", "", b""),
    ("DATE", "2024-02-29", dt.date(2024, 2, 29)),
    ("TIME", "23:59:59.999999", dt.time(23, 59, 59, 999999)),
    ("TIMESTAMP_NTZ", "2024-01-02T03:04:05.678901", dt.datetime(2024, 1, 2, 3, 4, 5, 678901)),
    ("TIMESTAMP_TZ", "2024-01-02T03:04:05+02:00", dt.datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)),
    ("TIMESTAMP_LTZ", "2024-01-02T03:04:05Z", dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("VARIANT", {"a": [1, None, "x"]}, {"a": [1, None, "x"]}),
    ("VARIANT", "text", "text"),
    ("ARRAY", [1, "a"], [1, "a"]),
    ("ARRAY", 5, [5]),
    ("OBJECT", {"a": 1}, {"a": 1}),
]
MISFITS: list[tuple[str, Any]] = [
    ("NUMBER(38,0)", "abc"),
    ("NUMBER(38,0)", 10**38),
    ("NUMBER(5,0)", 100000),
    ("NUMBER(5,2)", "999.995"),
    ("NUMBER(5,0)", "NaN"),
    ("NUMBER(5,0)", {}),
    ("FLOAT", "x"),
    ("BOOLEAN", "maybe"),
    ("VARCHAR(3)", "abcd"),
    ("BINARY", "abc"),
    ("BINARY", "zz"),
    ("BINARY(1)", "0000"),
    ("DATE", "2024-02-30"),
    ("DATE", "10000-01-01"),
    ("DATE", "infinity"),
    ("TIME", "25:00:00"),
    ("TIMESTAMP_NTZ", "yesterday"),
    ("TIMESTAMP_NTZ", "0000-01-01T00:00:00"),
    ("TIMESTAMP_TZ", "2024-13-01T00:00:00Z"),
    ("OBJECT", [1]),
    ("VARCHAR NOT NULL", None),
]


@pytest.mark.parametrize(("kind", "given", "kept"), FITS)
def test_a_value_that_fits(lake: Lake, kind: str, given: Any, kept: Any) -> None:
    table = lake.table(f"C {kind}")
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    assert client.append(token, json.dumps({"C": given}).encode())[0] == 200
    ((value,),) = lake.run(f"SELECT C FROM {table}")
    assert (json.loads(value) if kind in ("VARIANT", "ARRAY", "OBJECT") else value) == kept


def test_not_a_number_fits_a_float(lake: Lake) -> None:
    table = lake.table("C FLOAT")
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    assert client.append(token, b'{"C": "NaN"}')[0] == 200
    ((value,),) = lake.run(f"SELECT C FROM {table}")
    assert math.isnan(value)


@pytest.mark.parametrize(("kind", "given"), MISFITS)
def test_a_value_that_does_not_fit_is_left_out_and_counted(
    lake: Lake, kind: str, given: Any
) -> None:
    table = lake.table(f"ID NUMBER(3,0), C {kind}")
    client = lake.bare(table)
    channel = f"misfit {table}"
    token = client.open(channel)[1]["next_continuation_token"]
    good = {"ID": 2, "C": "ab"} if "NOT NULL" in kind else {"ID": 2}
    lines = "\n".join(json.dumps(row) for row in ({"ID": 1, "C": given}, good))
    answer = client.append(token, lines.encode(), channel=channel.replace(" ", "%20"), offset="9")
    assert answer[0] == 200
    assert lake.run(f"SELECT ID FROM {table}") == [(2,)]
    status = lake.status(channel)
    assert (status["rows_parsed"], status["rows_inserted"], status["rows_error_count"]) == (2, 1, 1)
    assert status["last_error_offset_upper_bound"] == "9"
    assert '"C"' in status["last_error_message"]
    assert status["last_error_timestamp_ms"] > 0
    assert status["last_committed_offset_token"] == "9"


def test_the_sdk_sees_the_count_grow(lake: Lake) -> None:
    table = lake.table("ID NUMBER(3,0) NOT NULL")
    with lake.channel(table, "counted") as channel:
        append(channel, [{"ID": 1}, {"ID": "x"}, {"ID": None}], "0001")
        append(channel, [{"ID": 2}, {"ID": 1000}], "0002")
        status = channel.get_channel_status()
    assert status.rows_error_count == 3
    assert status.last_error_offset_token_upper_bound == "0002"
    assert "out of range" in status.last_error_message
    assert lake.run(f"SELECT ID FROM {table} ORDER BY ID") == [(1,), (2,)]


def test_error_logging_keeps_refused_rows_as_they_came(lake: Lake) -> None:
    table = lake.table("ID NUMBER(3,0) NOT NULL", "ERROR_LOGGING = TRUE")
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    lines = b'{"ID": 1}\n{"ID": "x", "else": [1]}\n{"ID": 2}\n{"ID": null}'
    assert client.append(token, lines, offset="4")[0] == 200
    rows = lake.run(f"SELECT ERROR_METADATA, ERROR_DATA FROM ERROR_TABLE({table})")
    assert [json.loads(data) for _, data in rows] == [{"ID": "x", "else": [1]}, {"ID": None}]
    first = json.loads(rows[0][0])
    assert first["channel_name"] == "BARE"
    assert first["offset_token_upper_bound"] == "4"
    assert "not recognized" in first["error_message"]
    lake.run(f"ALTER TABLE {table} SET ERROR_LOGGING = FALSE")
    with pytest.raises(Exception, match="Error logging is not enabled"):
        lake.run(f"SELECT * FROM ERROR_TABLE({table})")
