"""PostgreSQL types in Spark: one table, one reader per type, the same for snapshot and stream.

Pure; runs on the driver (schemas) and on executors (values).
"""

from __future__ import annotations

from penstock.postgres.types.mapping import ColumnType, column_type
from penstock.postgres.types.policy import SESSION_SETTINGS, TypePolicy, session_sql

__all__ = ["SESSION_SETTINGS", "ColumnType", "TypePolicy", "column_type", "session_sql"]
