"""`format("postgres_cdc")`: what Spark sees; runs on the driver.

Parses options and hands out readers. Imports no SDK before it is used: Spark imports this module in
every session, whether PostgreSQL's drivers are installed or not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.errors import missing_extra
from penstock.postgres.options import PostgresCdcOptions, PostgresReadOptions

if TYPE_CHECKING:
    from types import ModuleType


class PostgresCdcDataSource(DataSource):
    """Changes and snapshots of PostgreSQL tables."""

    @classmethod
    def name(cls) -> str:
        """Give the name for `format(...)`."""
        return "postgres_cdc"

    def schema(self) -> StructType:
        """Give the columns of the table and those of the change; asks the server."""
        # The direction is not known here: the options of the stream are those of both.
        options = PostgresCdcOptions.parse(self.options)
        schema: StructType = _load("batch").schema_of(options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of `spark.read`."""
        options = PostgresReadOptions.parse(self.options)
        reader: DataSourceReader = _load("batch").PostgresBatchReader(options, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Make the reader of `spark.readStream`."""
        options = PostgresCdcOptions.parse(self.options)
        reader: DataSourceStreamReader = _load("source.reader").PostgresStreamReader(
            options, schema
        )
        return reader


def _load(module: str) -> ModuleType:
    """Import a module of this package that needs the extra."""
    try:
        return importlib.import_module(f"penstock.postgres.{module}")
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] == "penstock":
            raise
        raise missing_extra('format("postgres_cdc")', "postgres", exc.name) from exc
