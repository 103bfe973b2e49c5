"""Penstock: streaming pipelines for PySpark.

Installing the wheel is all the set-up there is: Spark finds the formats by itself through the
top-level `pyspark_penstock_*` modules. This package imports no vendor SDK.
"""

from penstock.errors import (
    AccessError,
    AgentError,
    CheckpointError,
    ConnectError,
    DataLossError,
    MissingExtraError,
    OptionError,
    PenstockError,
    ResourceError,
    RowError,
    SchemaError,
    SpoolError,
    WireError,
    WriteRejectedError,
)

__version__ = "0.1.0"

__all__ = [
    "AccessError",
    "AgentError",
    "CheckpointError",
    "ConnectError",
    "DataLossError",
    "MissingExtraError",
    "OptionError",
    "PenstockError",
    "ResourceError",
    "RowError",
    "SchemaError",
    "SpoolError",
    "WireError",
    "WriteRejectedError",
    "__version__",
]
