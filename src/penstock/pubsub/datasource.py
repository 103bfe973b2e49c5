"""`format("pubsub")`: what Spark sees; runs on the driver.

Parses options and hands out readers and writers. Imports no SDK before it is used: Spark imports
this module in every session, whether Pub/Sub is installed or not.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import OptionError, missing_extra
from penstock.pubsub.options import PubSubReadOptions, PubSubSinkOptions

if TYPE_CHECKING:
    from types import ModuleType

_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class PubSubDataSource(DataSource):
    """Google Cloud Pub/Sub: reads and writes, streaming and batch."""

    @classmethod
    def name(cls) -> str:
        """Give the name for `format(...)`."""
        return "pubsub"

    def schema(self) -> str:
        """Give the columns of a read; they are the same for every subscription."""
        ddl: str = _load("source.columns").columns_of(self.options).ddl
        return ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of `spark.read`."""
        options = PubSubReadOptions.parse(self.options)
        kind = "PubSubPushdownReader" if _is_pushdown() else "PubSubBatchReader"
        reader: DataSourceReader = getattr(_load("reader"), kind)(options, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Make the reader of `spark.readStream`."""
        from penstock.pubsub.source.options import PubSubSourceOptions

        options = PubSubSourceOptions.parse(self.options)
        reader: DataSourceStreamReader = _load("source.reader").PubSubStreamReader(
            options, dict(self.options), schema
        )
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Make the writer of `df.write`."""
        if overwrite:
            raise OptionError(
                "MODE",
                'Mode "overwrite" of write.format("pubsub")',
                "a topic can only be added to",
                'Use .mode("append")',
            )
        writer: DataSourceWriter = self._writer("PubSubBatchWriter", schema)
        return writer

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Make the writer of `df.writeStream`."""
        if overwrite:
            raise OptionError(
                "MODE",
                'Output mode "complete" of writeStream.format("pubsub")',
                "a topic can only be added to",
                'Use .outputMode("append") or .outputMode("update")',
            )
        writer: DataSourceStreamWriter = self._writer("PubSubStreamWriter", schema)
        return writer

    def _writer(self, class_name: str, schema: StructType) -> Any:
        options = PubSubSinkOptions.parse(self.options)
        return getattr(_load("writer"), class_name)(options, schema)


def _is_pushdown() -> bool:
    """Tell whether this process is the one in which Spark pushes filters down.

    Spark refuses a reader that can take filters while spark.sql.python.filterPushdown.enabled is
    false, its default. Only the process that pushes them has this module loaded.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN in sys.modules or (main is not None and main.name == _PUSHDOWN)


def _load(module: str) -> ModuleType:
    """Import a module of this package that needs the extra."""
    try:
        return importlib.import_module(f"penstock.pubsub.{module}")
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] == "penstock":
            raise
        raise missing_extra('format("pubsub")', "pubsub", exc.name) from exc
