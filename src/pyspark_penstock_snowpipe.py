"""Found and registered by Spark itself, which imports every top-level `pyspark_*` module.

An ImportError here would hide every Python data source from the user: no SDK is imported.
"""

from penstock.snowflake.datasource import SnowpipeDataSource as DefaultSource

__all__ = ["DefaultSource"]
