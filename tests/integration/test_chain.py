"""PostgreSQL to Snowflake through Spark, with kills and faults on the way: the tables are equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.postgres import postgres_server
from penstock.testing.snowflake import snowflake_emulator
from tests.support.chain import CHAINED, run_chain

# Two drivers start here, one of them with executors of its own.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_tables_in_snowflake_equal_their_sources_though_everything_fails(tmp_path: Path) -> None:
    """`python -m tests.support.chain` does it for as long and with as many kills as you like."""
    with postgres_server() as server, snowflake_emulator() as snowflake:
        figures = run_chain(
            server, server.create_database(), snowflake, tmp_path, seconds=5, kills=1, rate=40
        )
    assert (figures.driver_kills, figures.executor_kills) == (1, 1)
    assert set(figures.rows) == set(CHAINED)
    assert figures.faults
