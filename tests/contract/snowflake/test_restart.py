"""What an emulator with a directory still knows after it was stopped, or killed in mid-ingest."""

# ruff: noqa: S105, S608 - names are of these tests, tokens are no secrets

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from snowflake.ingest.streaming import StreamingIngestError

from penstock.errors import ConnectError
from penstock.testing import snowflake_emulator
from tests.support.snowflake import Lake, append, new_key
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


def test_all_of_it_outlives_a_stop(tmp_path: Path) -> None:
    with snowflake_emulator(directory=tmp_path / "kept") as emulator:
        lake = Lake(emulator)
        table = lake.table("ID NUMBER(10,0), NAME VARCHAR(5)", "ERROR_LOGGING = TRUE")
        lake.run("CREATE DATABASE OTHER")
        lake.run("CREATE TABLE OTHER.PUBLIC.X (A ARRAY)")
        _, public = new_key()
        emulator.set_public_key("SECOND", public)
        lake.run(f"CREATE STREAM S ON TABLE {table} APPEND_ONLY = TRUE")
        lake.run("CREATE TASK K SCHEDULE = '1 MINUTE' AS SELECT 1")
        with lake.channel(table) as channel:
            append(channel, [{"ID": 1, "NAME": "abc"}, {"ID": 2, "NAME": "too long"}], "0001")
        emulator.stop()
        emulator.start()
        assert lake.run(f"SELECT * FROM {table}") == [(1, "abc")]
        assert lake.run(f"DESCRIBE TABLE {table}")[1][1] == "VARCHAR(5)"
        assert lake.run("DESCRIBE TABLE OTHER.PUBLIC.X")[0][1] == "ARRAY"
        assert len(lake.run(f"SELECT * FROM ERROR_TABLE({table})")) == 1
        assert lake.run("SELECT SYSTEM$STREAM_HAS_DATA('S')") == [(True,)]
        assert [row[1] for row in lake.run("SHOW TASKS")] == ["K"]
        with lake.client(table) as client:
            channel, status = client.open_channel("channel")
            assert status.latest_committed_offset_token == "0001"
            assert status.rows_error_count == 1
            append(channel, [{"ID": 3}], "0002")
        assert lake.run(f"SELECT COUNT(*) FROM {table}") == [(2,)]


def test_killed_in_mid_ingest_token_and_rows_agree(tmp_path: Path) -> None:
    """Rows and committed token are of one transaction: after SIGKILL they say the same."""
    with snowflake_emulator(directory=tmp_path / "kept") as emulator:
        lake = Lake(emulator)
        table = lake.table("ID NUMBER(10,0)")
        for _ in range(3):
            with lake.client(table) as client:
                channel, status = client.open_channel("killed")
                begin = int(status.latest_committed_offset_token or 0)
                assert lake.run(f"SELECT COUNT(*), COUNT(DISTINCT ID) FROM {table}") == [
                    (begin, begin)
                ]
                stopped = threading.Event()

                def write(
                    channel: Any = channel, begin: int = begin, stopped: threading.Event = stopped
                ) -> None:
                    number = begin
                    while not stopped.is_set():
                        rows = [{"ID": number + i} for i in range(200)]
                        number += len(rows)
                        try:
                            channel.append_rows(rows, f"{number:08d}", f"{number:08d}")
                        except StreamingIngestError:
                            return
                        stopped.wait(0.01)

                writer = threading.Thread(target=write)
                writer.start()
                try:
                    wait_for(
                        lambda: int(lake.status("killed")["last_committed_offset_token"] or 0),
                        lambda seen, begin=begin: seen > begin,  # type: ignore[misc]
                        60,
                    )
                finally:
                    emulator.kill()
                    stopped.set()
                    writer.join()
            emulator.start()
        status = lake.status("killed")
        count = int(status["last_committed_offset_token"])
        assert count > 0
        assert lake.run(f"SELECT COUNT(*), COUNT(DISTINCT ID), MAX(ID) FROM {table}") == [
            (count, count, count - 1)
        ]


def test_a_client_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The SDK's token, the certificate and the channel are still good."""
    with snowflake_emulator(directory=tmp_path / "kept") as emulator:
        lake = Lake(emulator)
        table = lake.table("ID NUMBER(10,0)")
        with lake.channel(table) as channel:
            append(channel, [{"ID": 1}], "0001")
            emulator.kill()
            channel.append_rows([{"ID": 2}], "0002", "0002")
            emulator.start()
            channel.wait_for_commit(lambda seen: seen == "0002", 60)
        assert lake.run(f"SELECT ID FROM {table} ORDER BY ID") == [(1,), (2,)]


def test_a_port_that_is_taken_is_said() -> None:
    with (
        snowflake_emulator() as emulator,
        pytest.raises(ConnectError, match="did not start"),
        snowflake_emulator(port=emulator.port),
    ):
        pass
