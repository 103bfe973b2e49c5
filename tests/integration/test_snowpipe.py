"""The Snowpipe sink in Spark, against the emulator: the real SDK and the real connector."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.snowflake.datasource import SnowpipeDataSource
from penstock.testing.snowflake import SnowflakeEmulator, SnowflakeFault, snowflake_emulator
from tests.support.spark import wait_until

pytestmark = pytest.mark.spark

_NUMBERS = itertools.count()


class Snowpipe:
    """A table of a test's own, and writes to it."""

    def __init__(self, emulator: SnowflakeEmulator, spark: SparkSession, directory: Path) -> None:
        self.emulator = emulator
        self.spark = spark
        self.directory = directory
        self.table = f"I{next(_NUMBERS)}"
        self.source = directory / "source"
        self.source.mkdir()
        spark.dataSource.register(SnowpipeDataSource)

    def options(self, **more: str) -> dict[str, str]:
        emulator = self.emulator
        return {
            "account": emulator.account,
            "user": emulator.user,
            "role": emulator.role,
            "database": emulator.database,
            "host": emulator.host,
            "port": str(emulator.port),
            "privateKeyFile": str(emulator.private_key_file),
            "table": self.table,
            "createTable": "true",
            "idleTimeout": "2s",
        } | more

    def add(self, start: int, end: int) -> None:
        """Give the stream one more file: one more batch, of one partition."""
        frame = self.spark.range(start, end, 1, 1)
        frame.write.mode("append").parquet(str(self.source))

    def stream(self, shape: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> DataFrame:
        return shape(
            self.spark.readStream.schema("id bigint")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.source))
        )

    def start(self, frame: DataFrame, **more: str) -> StreamingQuery:
        return (
            frame.writeStream.format("snowpipe")
            .options(**self.options(**more))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, frame: DataFrame, **more: str) -> None:
        query = self.start(frame, **more)
        try:
            assert query.awaitTermination(150)
        finally:
            query.stop()

    def query(self, sql: str) -> list[Any]:
        with self.emulator.connect() as connection, connection.cursor() as cursor:
            return list(cursor.execute(sql).fetchall())

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.query(f"SELECT id FROM {self.table}"))  # noqa: S608


@pytest.fixture(scope="module")
def running_emulator() -> Iterator[SnowflakeEmulator]:
    # Before the session's workers: they trust the emulator by their environment.
    with snowflake_emulator() as emulator:
        yield emulator


@pytest.fixture
def snowpipe(
    running_emulator: SnowflakeEmulator, spark: SparkSession, tmp_path: Path
) -> Iterator[Snowpipe]:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        # The session may be older than the emulator: its workers get this from the driver.
        spark.conf.set(f"spark.executorEnv.{name}", os.environ[name])
        spark.sparkContext.environment[name] = os.environ[name]
    yield Snowpipe(running_emulator, spark, tmp_path)
    running_emulator.clear_faults()


def test_a_batch_write_arrives_once_and_leaves_no_channel(snowpipe: Snowpipe) -> None:
    frame = snowpipe.spark.range(0, 5000, 1, 2).selectExpr("id", "array(id) a", "map('k', id) m")
    frame.write.format("snowpipe").options(**snowpipe.options()).mode("append").save()
    assert snowpipe.ids() == list(range(5000))
    assert not [name for name in snowpipe.emulator.channels() if name.startswith("PENSTOCK_WRITE")]
    assert snowpipe.emulator.sessions() == 0


def test_a_stream_goes_on_from_its_checkpoint(snowpipe: Snowpipe) -> None:
    snowpipe.add(0, 1000)
    snowpipe.add(1000, 2000)
    snowpipe.run(snowpipe.stream())
    snowpipe.add(2000, 3000)
    snowpipe.run(snowpipe.stream())
    assert snowpipe.ids() == list(range(3000))
    assert snowpipe.emulator.sessions() == 0


def test_a_batch_that_was_written_and_not_committed_is_not_written_twice(
    snowpipe: Snowpipe,
) -> None:
    """Killed between the rows' commit in Snowflake and Spark's own commit."""
    snowpipe.add(0, 1000)
    snowpipe.add(1000, 2000)
    snowpipe.run(snowpipe.stream())
    # Spark's mark of the last batch is taken away: as if the driver had died before writing it.
    commits = snowpipe.directory / "checkpoint" / "commits"
    (commits / "1").unlink()
    (commits / ".1.crc").unlink(missing_ok=True)
    sent = snowpipe.emulator.calls()["append_rows"]
    snowpipe.run(snowpipe.stream())
    assert snowpipe.ids() == list(range(2000))
    assert snowpipe.emulator.calls()["append_rows"] == sent


def test_a_worker_killed_in_the_middle_of_its_rows_costs_nothing(
    snowpipe: Snowpipe, tmp_path: Path
) -> None:
    """SIGKILL of the Python worker after some of its chunks are committed."""
    mark = tmp_path / "killed"

    def kill_once(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for number, batch in enumerate(batches):
            if number == 3 and not mark.exists():
                mark.touch()
                # Let what was sent be committed: the interesting case.
                time.sleep(3)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    snowpipe.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        snowpipe.add(0, 5000)
        frame = snowpipe.stream(lambda frame: frame.mapInArrow(kill_once, "id bigint"))
        snowpipe.run(frame, chunkBytes="2000")
    finally:
        snowpipe.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert mark.exists()
    assert snowpipe.ids() == list(range(5000))


def test_faults_on_the_way_cost_time_only(snowpipe: Snowpipe) -> None:
    for kind, status in (("error", 429), ("error", 503), ("error", 410), ("lose_response", 503)):
        snowpipe.emulator.inject(
            SnowflakeFault(kind=kind, method="append_rows", status=status, count=1)  # type: ignore[arg-type]
        )
    for start in range(0, 3000, 1000):
        snowpipe.add(start, start + 1000)
    snowpipe.run(snowpipe.stream(), chunkBytes="4000")
    assert snowpipe.ids() == list(range(3000))


def test_an_empty_batch_opens_no_channel_and_runs_no_statement(snowpipe: Snowpipe) -> None:
    snowpipe.add(0, 10)
    snowpipe.run(snowpipe.stream())
    before = snowpipe.emulator.calls()
    snowpipe.add(10, 20)
    snowpipe.run(snowpipe.stream(lambda frame: frame.where("id < 10")))
    after = snowpipe.emulator.calls()
    for call in ("open_channel", "append_rows", "hostname"):
        assert after[call] == before[call]
    assert snowpipe.emulator.warehouse_statements() == 0 or after["query"] == before["query"]


def test_refused_rows_end_the_query_with_their_position(snowpipe: Snowpipe) -> None:
    snowpipe.add(0, 10)
    frame = snowpipe.stream(
        lambda frame: frame.selectExpr("id", "if(id = 7, double('NaN'), 0.5D) f")
    )
    with pytest.raises(StreamingQueryException, match=r"ROW_REFUSED.*'F' in row 7 of partition 0"):
        snowpipe.run(frame, onNonFinite="refuse")
    letters = f"{snowpipe.table}_LETTERS"
    snowpipe.run(frame, onNonFinite="refuse", onRefusedRows="dead-letter", deadLetterTable=letters)
    assert snowpipe.ids() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    found = snowpipe.query(f"SELECT row_number, column_name FROM {letters}")  # noqa: S608
    assert found == [(7, "F")]


def test_changes_land_and_are_merged(snowpipe: Snowpipe) -> None:
    snowpipe.add(0, 4)
    frame = snowpipe.stream(
        lambda frame: frame.selectExpr(
            "id div 2 id",
            "concat('v', id) value",
            "if(id % 2 = 0, 'insert', if(id = 3, 'delete', 'update')) _op",
            "id + 100 _lsn",
            "id _ordinal",
            "current_timestamp() _commit_time",
            "id _xid",
            "cast(null as array<string>) _unchanged",
        )
    )
    more = {"merge": "true", "keyColumns": "id", "warehouse": snowpipe.emulator.warehouse}
    snowpipe.run(frame, landingSchema="LANDING", **more)
    table = snowpipe.table
    assert snowpipe.query(f"SELECT id, value FROM {table}") == [(0, "v1")]  # noqa: S608
    left = snowpipe.query(f"SELECT count(*) FROM LANDING.{table}_LANDING")  # noqa: S608
    assert left == [(0,)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"createTable": "false"}, "does not exist"),
        ({"privateKeyFile": "/nowhere/key.p8"}, "cannot be read on this node"),
        ({"flushTimeuot": "1s"}, "Did you mean 'flushTimeout'"),
        ({"jsonColumns": "x"}, "not a column of type string"),
    ],
)
def test_what_is_wrong_is_told_before_any_row_is_sent(
    snowpipe: Snowpipe, wrong: dict[str, str], words: str
) -> None:
    sent = snowpipe.emulator.calls().get("append_rows", 0)
    frame = snowpipe.spark.range(5)
    with pytest.raises(PySparkException, match=words):
        frame.write.format("snowpipe").options(**snowpipe.options(**wrong)).mode("append").save()
    assert snowpipe.emulator.calls().get("append_rows", 0) == sent


def test_idle_workers_close_their_clients(snowpipe: Snowpipe) -> None:
    """The SDK asks for the status of open channels all the time: it stops when they are closed."""
    snowpipe.add(0, 10)
    snowpipe.run(snowpipe.stream(), idleTimeout="1s")

    def is_quiet() -> bool:
        import time

        first = snowpipe.emulator.calls().get("channel_status")
        time.sleep(2.5)
        return snowpipe.emulator.calls().get("channel_status") == first

    wait_until(is_quiet, 30)
    assert snowpipe.emulator.sessions() == 0
