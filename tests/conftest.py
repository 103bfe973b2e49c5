"""Fixtures shared by all tests: one Spark session for the whole run, made when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

import penstock.testing  # noqa: F401 - before anything uses gRPC
from tests.support.spark import spark_session

# How long one example takes says more about the machine than about the code.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: "/integration/" not in item.path.as_posix())
