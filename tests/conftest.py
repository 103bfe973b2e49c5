"""Fixtures shared by all tests: one Spark session for the whole run, made when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session
