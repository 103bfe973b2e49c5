"""`format("snowpipe")`: what Spark sees; runs on the driver.

Parses options and hands out writers. Imports no SDK before it is used: Spark imports this module
in every session, whether Snowflake's packages are installed or not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from penstock.errors import OptionError, missing_extra
from penstock.snowflake.options import SnowpipeOptions

if TYPE_CHECKING:
    from types import ModuleType


class SnowpipeDataSource(DataSource):
    """Snowflake tables, by Snowpipe Streaming: writes, streaming and batch."""

    @classmethod
    def name(cls) -> str:
        """Give the name for `format(...)`."""
        return "snowpipe"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001 - Spark's
        """Make the writer of `df.writeStream`."""
        options = SnowpipeOptions.parse(self.options)
        if overwrite:
            raise OptionError(
                "MODE",
                'Output mode "complete" of writeStream.format("snowpipe")',
                "rows are only added to a table",
                'Use .outputMode("append"), or "update" with merge=true',
            )
        writer: DataSourceStreamWriter = _load("sink.writer").SnowpipeStreamWriter(options, schema)
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Make the writer of `df.write`."""
        options = SnowpipeOptions.parse(self.options)
        if overwrite:
            raise OptionError(
                "MODE",
                'Mode "overwrite" of write.format("snowpipe")',
                "rows are only added to a table",
                'Use .mode("append"), after a TRUNCATE TABLE of your own',
            )
        writer: DataSourceWriter = _load("sink.writer").SnowpipeBatchWriter(options, schema)
        return writer


def _load(module: str) -> ModuleType:
    """Import a module of this package that needs the extra."""
    try:
        return importlib.import_module(f"penstock.snowflake.{module}")
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] == "penstock":
            raise
        raise missing_extra('format("snowpipe")', "snowflake", exc.name) from exc
