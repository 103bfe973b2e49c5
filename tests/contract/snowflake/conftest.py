"""What the tests of the Snowflake emulator share: one emulator for a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import snowflake_emulator
from tests.support.snowflake import Lake


@pytest.fixture(scope="module")
def running_lake() -> Iterator[Lake]:
    with snowflake_emulator() as emulator:
        yield Lake(emulator)


@pytest.fixture
def lake(running_lake: Lake) -> Iterator[Lake]:
    """Give the module's emulator; no fault of one test meets the next."""
    yield running_lake
    running_lake.emulator.clear_faults()
