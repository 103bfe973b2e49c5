"""Each fault, as the official SDK and connector meet it."""

# ruff: noqa: S105, S608 - names are of these tests, tokens are no secrets

from __future__ import annotations

from typing import Any

import pytest
from snowflake.ingest.streaming import StreamingIngestError

from penstock.testing import SnowflakeFault
from tests.support.snowflake import Lake, append
from tests.support.waiting import wait_for


@pytest.fixture
def table(lake: Lake) -> str:
    return lake.table("ID NUMBER(38,0)")


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "error", "status": 429},
        {"kind": "error", "status": 500},
        {"kind": "error", "status": 503},
        {"kind": "drop"},
        {"kind": "lose_response"},
        {"kind": "latency", "seconds": 0.2},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('status', '')}",
)
def test_rows_arrive_once_through_passing_faults(
    lake: Lake, table: str, fault: dict[str, Any]
) -> None:
    before = lake.emulator.faults_struck().get(fault["kind"], 0)
    with lake.channel(table) as channel:
        lake.emulator.inject(SnowflakeFault(method="append_rows", count=2, **fault))
        append(channel, [{"ID": i} for i in range(5)], "0005")
        append(channel, [{"ID": 5}], "0006")
    assert lake.run(f"SELECT COUNT(*), COUNT(DISTINCT ID) FROM {table}") == [(6, 6)]
    assert lake.emulator.faults_struck()[fault["kind"]] == before + 2


def test_a_lost_answer_to_opening_is_no_harm(lake: Lake, table: str) -> None:
    lake.emulator.inject(SnowflakeFault(kind="lose_response", method="open_channel", count=1))
    with lake.channel(table, "lost") as channel:
        append(channel, [{"ID": 1}], "0001")
    assert lake.run(f"SELECT COUNT(*) FROM {table}") == [(1,)]


def test_a_pipe_that_failed_over_ends_the_client(lake: Lake, table: str) -> None:
    with lake.channel(table) as channel:
        lake.emulator.inject(
            SnowflakeFault(kind="error", method="append_rows", status=410, code="PIPE_FAILED_OVER")
        )
        channel.append_rows([{"ID": 1}], "0001", "0001")
        with pytest.raises(StreamingIngestError) as caught:
            channel.wait_for_commit(lambda seen: seen == "0001", 30)
    assert "PIPE_FAILED_OVER" in str(caught.value)
    assert lake.run(f"SELECT COUNT(*) FROM {table}") == [(0,)]


def test_a_delayed_commit_keeps_rows_and_token_back_together(lake: Lake, table: str) -> None:
    channel_name = f"late {table}"
    with lake.channel(table, channel_name) as channel:
        before = lake.emulator.faults_struck().get("delay_commit", 0)
        lake.emulator.inject(
            SnowflakeFault(kind="delay_commit", channel=channel_name, seconds=5, count=1)
        )
        channel.append_rows([{"ID": 1}], "0001", "0001")
        wait_for(lambda: lake.emulator.faults_struck().get("delay_commit", 0) > before)
        assert lake.run(f"SELECT COUNT(*) FROM {table}") == [(0,)]
        assert lake.status(channel_name)["last_committed_offset_token"] is None
        append(channel, [{"ID": 2}], "0002")
    assert lake.run(f"SELECT ID FROM {table} ORDER BY ID") == [(1,), (2,)]


def test_a_channel_with_rows_under_way_opens_when_they_are_in(lake: Lake, table: str) -> None:
    """The service answers 409 meanwhile, and the SDK waits."""
    channel_name = f"busy {table}"
    with lake.client(table) as first, lake.client(table) as second:
        channel, _ = first.open_channel(channel_name)
        before = lake.emulator.faults_struck().get("delay_commit", 0)
        lake.emulator.inject(
            SnowflakeFault(kind="delay_commit", channel=channel_name, seconds=2, count=1)
        )
        channel.append_rows([{"ID": 1}], "0001", "0001")
        wait_for(lambda: lake.emulator.faults_struck().get("delay_commit", 0) > before)
        _, status = second.open_channel(channel_name)
    assert status.latest_committed_offset_token == "0001"
    assert lake.run(f"SELECT ID FROM {table}") == [(1,)]


def test_a_frozen_channel_looks_well_until_it_is_opened_again(lake: Lake, table: str) -> None:
    channel_name = f"frozen {table}"
    with lake.client(table) as client, lake.client(table) as other:
        channel, _ = client.open_channel(channel_name)
        append(channel, [{"ID": 1}], "0001")
        before = lake.emulator.faults_struck().get("freeze_channel", 0)
        lake.emulator.inject(SnowflakeFault(kind="freeze_channel", channel=channel_name, count=1))
        channel.append_rows([{"ID": 2}], "0002", "0002")
        wait_for(lambda: lake.emulator.faults_struck().get("freeze_channel", 0) > before)
        status = lake.status(channel_name)
        assert status["channel_status_code"] == "SUCCESS"
        assert status["last_committed_offset_token"] == "0001"
        assert status["rows_error_count"] == 0
        again, opened = other.open_channel(channel_name)
        assert opened.latest_committed_offset_token == "0001"
        append(again, [{"ID": 2}], "0002")
    assert lake.run(f"SELECT ID FROM {table} ORDER BY ID") == [(1,), (2,)]


def test_a_fault_meets_its_channel_only(lake: Lake, table: str) -> None:
    lake.emulator.inject(SnowflakeFault(kind="error", status=400, channel="UNLUCKY"))
    client = lake.bare(table)
    assert client.open("lucky")[0] == 200
    assert client.open("unlucky")[0] == 400


def test_statements_fail_by_request(lake: Lake, table: str) -> None:
    lake.emulator.inject(SnowflakeFault(kind="drop", method="query", count=1))
    # The connector sends it again by itself.
    assert lake.run(f"SELECT COUNT(*) FROM {table}") == [(0,)]


def test_a_fault_that_cannot_be_is_refused(lake: Lake) -> None:
    with pytest.raises(ValueError, match="there is no fault"):
        lake.emulator._call("inject", kind="sabotage")
    with pytest.raises(ValueError, match="unexpected keyword"):
        lake.emulator._call("inject", kind="drop", colour="red")
    with pytest.raises(ValueError, match="no control method"):
        lake.emulator._call("sabotage")
