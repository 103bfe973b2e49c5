from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakesnow.instance import FakeSnow

from tests.support.merge import MergeTables, mended_fakesnow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "snowflake/merge" in item.nodeid:
            # fakesnow's own way of reading from DuckDB.
            item.add_marker(pytest.mark.filterwarnings("ignore:Arrow output on a DB-API result"))


@pytest.fixture(scope="session")
def snow() -> Iterator[FakeSnow]:
    with mended_fakesnow() as instance:
        yield instance


@pytest.fixture
def tables(snow: FakeSnow) -> Iterator[MergeTables]:
    made = MergeTables(snow, {"id": "NUMBER(10,0)", "a": "VARCHAR", "b": "VARCHAR"}, ["id"])
    yield made
    made.close()
