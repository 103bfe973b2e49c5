"""Channels: what is committed, what is refused, what is done once; with the official SDK."""

# ruff: noqa: S105, S608 - names are of these tests, tokens are no secrets

from __future__ import annotations

import gzip
import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from snowflake.ingest.streaming import StreamingIngestError

from tests.support.snowflake import Lake, append


def test_rows_are_in_the_table_when_their_token_is_committed(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0), NAME VARCHAR")
    with lake.channel(table) as channel:
        append(channel, [{"ID": i, "NAME": f"n{i}"} for i in range(10)], "0010")
        assert lake.run(f"SELECT COUNT(*), MAX(NAME) FROM {table}") == [(10, "n9")]
        status = channel.get_channel_status()
    assert status.latest_committed_offset_token == "0010"
    assert (status.rows_inserted_count, status.rows_error_count) == (10, 0)


def test_a_channel_that_is_opened_again_tells_what_was_committed(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    with lake.channel(table, "again") as channel:
        append(channel, [{"ID": 1}], "0001")
    with lake.client(table) as client:
        channel, status = client.open_channel("again")
        assert status.latest_committed_offset_token == "0001"
        append(channel, [{"ID": 2}], "0002")
    assert lake.run(f"SELECT ID FROM {table} ORDER BY ID") == [(1,), (2,)]


def test_opening_a_channel_makes_the_older_one_invalid(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    with lake.client(table) as first, lake.client(table) as second:
        old, _ = first.open_channel("shared")
        append(old, [{"ID": 1}], "0001")
        new, _ = second.open_channel("shared")
        old.append_rows([{"ID": 666}], "0002", "0002")
        with pytest.raises(StreamingIngestError) as caught:
            old.wait_for_commit(lambda seen: seen == "0002", 30)
        assert "STALE_CONTINUATION_TOKEN_SEQUENCER" in str(caught.value)
        append(new, [{"ID": 2}], "0002")
    assert lake.run(f"SELECT ID FROM {table} ORDER BY ID") == [(1,), (2,)]


def test_a_burst_stays_in_the_row_mode(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0), TEXT VARCHAR")
    count = 100_000
    rows = [msgspec.Raw(json.dumps({"ID": i, "TEXT": "x" * 900}).encode()) for i in range(count)]
    with lake.channel(table) as channel:
        for begin in range(0, count, 10_000):
            end = begin + 10_000
            channel.append_rows(rows[begin:end], f"{begin:06d}", f"{end:06d}")
        channel.wait_for_commit(lambda seen: seen == f"{count:06d}", 120)
    assert lake.run(f"SELECT COUNT(*), COUNT(DISTINCT ID) FROM {table}") == [(count, count)]


def test_a_repeated_request_inserts_nothing_twice(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    first = client.append(token, b'{"ID": 1}\n')
    assert first[0] == 200
    assert client.append(token, b'{"ID": 1}\n') == first
    status, answer = client.append(token, b'{"ID": 2}\n', request="another")
    assert (status, answer["code"]) == (400, "STALE_CONTINUATION_TOKEN")
    assert lake.run(f"SELECT ID FROM {table}") == [(1,)]


@pytest.mark.parametrize("token", ["", "x", "1_99", "0_0", "-1_0", "1_0_0", "9" * 40 + "_1"])
def test_a_continuation_token_that_was_not_given_is_refused(lake: Lake, token: str) -> None:
    table = lake.table("ID NUMBER(38,0)")
    client = lake.bare(table)
    assert client.open()[0] == 200
    assert client.append(token, b'{"ID": 1}')[0] == 400
    assert lake.run(f"SELECT COUNT(*) FROM {table}") == [(0,)]


def _zstd(body: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(body)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("encoding", "pack"), [("", bytes), ("gzip", gzip.compress), ("zstd", _zstd)]
)
def test_rows_come_in_each_encoding(lake: Lake, encoding: str, pack: Any) -> None:
    table = lake.table("ID NUMBER(38,0)")
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    headers = {"Content-Encoding": encoding} if encoding else {}
    assert client.append(token, pack(b'{"ID": 1}\n{"id": 2}'), headers=headers)[0] == 400
    assert client.append(token, pack(b'{"ID": 1}\n{"ID": 2}'), headers=headers)[0] == 200
    assert lake.run(f"SELECT ID FROM {table} ORDER BY ID") == [(1,), (2,)]


def test_keys_name_columns_in_any_case_and_others_are_ignored(lake: Lake) -> None:
    table = lake.table('ID NUMBER(38,0), "Mixed" VARCHAR')
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    assert client.append(token, b'{"id": 1, "MIXED": "x", "else": 5}')[0] == 200
    assert lake.run(f"SELECT * FROM {table}") == [(1, "x")]


def test_names_of_any_kind(lake: Lake) -> None:
    name = 'Odd "näme". 100% / it\'s'
    quoted = '"' + name.replace('"', '""') + '"'
    lake.run(f'CREATE TABLE {quoted} ("a.b \'c" NUMBER(38,0))')
    client = lake.bare(name)
    status, answer = client.open("chan nel/1")
    assert status == 200
    assert answer["channel_status"]["channel_name"] == "chan nel/1"
    path = f"/v2/streaming/data/{client.pipe}/channels/chan%20nel%2F1/rows"
    query = f"?continuationToken={answer['next_continuation_token']}&requestId=1&endOffsetToken=1"
    assert client.send("POST", path + query, b'{"a.b \'c": 7}')[0] == 200
    assert lake.run(f"SELECT * FROM {quoted}") == [(7,)]


@pytest.mark.parametrize(
    ("old", "new"),
    [("PENSTOCK/", "NOWHERE/"), ("PUBLIC", "NOWHERE"), ("-STREAMING", "")],
    ids=["database", "schema", "pipe"],
)
def test_what_does_not_exist_is_refused(lake: Lake, old: str, new: str) -> None:
    client = lake.bare(lake.table("ID NUMBER(38,0)"))
    client.pipe = client.pipe.replace(old, new)
    status, answer = client.open()
    assert status == 404
    assert "DOES_NOT_EXIST" in answer["code"]


def test_an_unknown_channel_is_refused(lake: Lake) -> None:
    client = lake.bare(lake.table("ID NUMBER(38,0)"))
    assert client.append("1_0", b'{"ID": 1}')[0] == 404


def test_a_dropped_channel_is_forgotten(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    with lake.client(table) as client:
        channel, _ = client.open_channel("dropped")
        append(channel, [{"ID": 1}], "0001")
        channel.close(drop=True)
        assert "DROPPED" not in lake.emulator.channels()
        _, status = client.open_channel("dropped")
    assert status.latest_committed_offset_token is None


def test_a_table_that_was_replaced_has_no_use_for_old_channels(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    lake.run(f"ALTER TABLE {table} ADD COLUMN NAME VARCHAR(3)")
    assert client.append(token, b'{"ID": 1, "NAME": "abc"}')[0] == 200
    lake.run(f"DROP TABLE {table}")
    assert client.append("1_1", b'{"ID": 1}', request="r2")[0] == 404


def test_a_named_pipe_leads_to_its_table(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    lake.run(
        f"CREATE PIPE P_{table} AS COPY INTO {table} FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')) "
        "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    )
    client = lake.bare(table)
    client.pipe = client.pipe.replace(f"{table}-STREAMING", f"P_{table}")
    token = client.open()[1]["next_continuation_token"]
    assert client.append(token, b'{"ID": 3}')[0] == 200
    assert lake.run(f"SELECT * FROM {table}") == [(3,)]
