"""One Snowflake emulator for the tests of the sink; faults end with the test that made them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from penstock.snowflake import preflight
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.preflight import plans_for
from penstock.snowflake.sink.pool import POOL
from penstock.snowflake.sink.task import TaskPlace, TaskTotals, write_partition
from penstock.testing.snowflake import SnowflakeEmulator, snowflake_emulator

_NUMBERS = itertools.count()


class Sink:
    """A table of a test's own, and tasks that write to it in this process."""

    def __init__(self, emulator: SnowflakeEmulator) -> None:
        self.emulator = emulator
        self.number = next(_NUMBERS)
        self.table = f"T{self.number}"
        self.stream = f"S{self.number}"

    def options(self, **more: str) -> SnowpipeOptions:
        emulator = self.emulator
        given = {
            "account": emulator.account,
            "user": emulator.user,
            "role": emulator.role,
            "database": emulator.database,
            "host": emulator.host,
            "port": str(emulator.port),
            "privateKeyFile": str(emulator.private_key_file),
            "table": self.table,
            "createTable": "true",
            "flushTimeout": "30s",
        }
        return SnowpipeOptions.parse(given | more)

    def write(
        self,
        values: list[Any],
        batch: int = 0,
        partition: int = 0,
        kind: spark.DataType | None = None,
        **more: str,
    ) -> TaskTotals:
        options = self.options(**more)
        schema = spark.StructType([spark.StructField("n", kind or spark.LongType())])
        preflight._CHECKED.clear()
        plan = plans_for(options, schema).sink
        rows = [pa.record_batch([part], names=["n"]) for part in self.arrays(values, kind)]
        return write_partition(options, plan, TaskPlace(self.stream, batch, partition), iter(rows))

    @staticmethod
    def arrays(values: list[Any], kind: spark.DataType | None) -> list[pa.Array]:
        from pyspark.sql.pandas.types import to_arrow_type

        arrow = to_arrow_type(kind or spark.LongType())
        return [pa.array(values[i : i + 500], arrow) for i in range(0, len(values), 500)]

    def query(self, sql: str) -> list[Any]:
        with self.emulator.connect() as connection, connection.cursor() as cursor:
            return list(cursor.execute(sql).fetchall())

    def rows(self, column: str = "n") -> list[Any]:
        return sorted(row[0] for row in self.query(f"SELECT {column} FROM {self.table}"))  # noqa: S608

    @property
    def channel(self) -> str:
        return f"{self.stream}_00000"

    def status(self) -> dict[str, Any]:
        return self.emulator.channels()[self.channel]


@pytest.fixture(scope="session")
def running_emulator() -> Iterator[SnowflakeEmulator]:
    with snowflake_emulator() as emulator:
        yield emulator
        POOL.close()


@pytest.fixture
def sink(running_emulator: SnowflakeEmulator) -> Iterator[Sink]:
    yield Sink(running_emulator)
    running_emulator.clear_faults()
    # Clients that a test has broken are not for the next one.
    POOL.close()
