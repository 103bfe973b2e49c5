"""The whole chain under kills and faults: PostgreSQL, Spark, Snowflake; are the tables the same?

`python -m tests.support.chain 60 4` runs it for 60 s with four kills and prints the figures.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from penstock.postgres.lsn import parse_lsn
from penstock.testing.postgres import PostgresServer, postgres_server
from penstock.testing.snowflake import SnowflakeEmulator, SnowflakeFault, snowflake_emulator
from tests.support.cdc_driver import committed, committed_lsn
from tests.support.cdc_kills import clear_half_written
from tests.support.cdc_load import TABLES, Load, prepare_load
from tests.support.cdc_table import assert_same_rows
from tests.support.chain_driver import PROGRAM
from tests.support.source_cluster import Driver, driver
from tests.support.spark import wait_until

# Generous: the machine may be busy.
_PATIENCE_SECONDS = 240.0
# Of these the landing table is left alone until the end, and then merged by its task.
SCHEDULED = "items"
CHAINED = ("orders", "items", "audit")
# What goes wrong in Snowflake before each kill, in turn.
FAULTS = (
    SnowflakeFault(kind="lose_response", method="append_rows", count=2),
    SnowflakeFault(kind="error", method="append_rows", status=429, count=3),
    SnowflakeFault(kind="error", method="channel_status", status=503, count=2),
    SnowflakeFault(kind="delay_commit", method="append_rows", count=2, seconds=2.0),
    SnowflakeFault(kind="drop", method="query", count=1),
)


@dataclass
class Figures:
    """What a run has seen."""

    seconds: float = 0.0
    catch_up_seconds: float = 0.0
    driver_kills: int = 0
    executor_kills: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    # Rows that the service has taken for the table whose landing rows were kept, and their number.
    landed: int = 0
    rows: dict[str, int] = field(default_factory=dict)


class Chain:
    """Queries on all tables, in one driver after another."""

    def __init__(
        self, server: PostgresServer, database: str, snowflake: SnowflakeEmulator, folder: Path
    ) -> None:
        self._server = server
        self._database = database
        self._snowflake = snowflake
        self.folders = {table: folder / table for table in CHAINED}
        self.figures = Figures()

    @contextmanager
    def life(self, master: str) -> Iterator[Driver]:
        """Run a driver with all queries; it may be dead at the end."""
        with driver(PROGRAM, **{"spark.master": master}) as running:
            for table, folder in self.folders.items():
                folder.mkdir(exist_ok=True)
                clear_half_written(folder)
                running.ask(
                    "start",
                    folder,
                    source={
                        "url": self._server.url(self._database),
                        "table": table,
                        "heartbeatInterval": "1s",
                    },
                    sink=self._sink(table),
                    trigger="500 milliseconds",
                )
            yield running

    def _sink(self, table: str) -> dict[str, str]:
        options = {
            **self._snowflake.sink_options(),
            "table": table,
            "createTable": "true",
            "merge": "true",
            "keyColumns": ",".join(TABLES[table]),
            "landingSchema": "landing",
            "channelPrefix": f"chain_{table}",
            "flushTimeout": "60s",
        }
        if table == SCHEDULED:
            # Far away: it runs when the test says so.
            options["mergeSchedule"] = "24 hours"
        return options

    def wait(self, running: Driver, condition: Callable[[], bool]) -> None:
        """Wait for something that the queries do; they must not fail."""

        def look() -> bool:
            for table, folder in self.folders.items():
                error = running.ask("look", folder)["error"]
                assert error is None, f"{table}: {error}"
            return condition()

        wait_until(look, _PATIENCE_SECONDS, running.log_tail)

    def kill_driver(self, running: Driver) -> None:
        """Kill the driver and its JVM at once; their Python processes end by themselves."""
        below = running.process.children(recursive=True)
        try:
            for process in [*running.descendants("org.apache.spark.deploy"), running.process]:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            alive = psutil.wait_procs(below, timeout=30)[1]
            assert not alive, alive
        finally:
            for process in below:
                with suppress(psutil.Error):
                    process.kill()
        self.figures.driver_kills += 1

    def ends(self) -> dict[str, Any]:
        """Give the end of each query's last committed batch."""
        return {table: committed(folder) for table, folder in self.folders.items()}

    def has_moved(self, before: dict[str, Any]) -> bool:
        """Tell whether each query has committed a batch since."""
        return all(end and end != before[table] for table, end in self.ends().items())

    def disturb(self, kills: int, chance: random.Random) -> None:
        """Kill drivers, and in the first life an executor, with faults in Snowflake between."""
        for number in range(kills):
            before = self.ends()
            with self.life("local-cluster[2,1,1024]" if number == 0 else "local[2, 4]") as running:
                self._snowflake.inject(FAULTS[number % len(FAULTS)])
                self.wait(running, lambda before=before: self.has_moved(before))
                if number == 0:
                    before = self.ends()
                    running.descendants("CoarseGrainedExecutorBackend")[0].kill()
                    self.figures.executor_kills += 1
                    self.wait(running, lambda before=before: self.has_moved(before))
                at = time.monotonic() + chance.uniform(0.0, 2.0)
                wait_until(lambda at=at: time.monotonic() > at)
                self.kill_driver(running)

    def catch_up(self) -> None:
        """Run until everything is in Snowflake and in Spark's commit logs."""
        [(end,)] = self._server.execute("SELECT pg_current_wal_flush_lsn()::text", self._database)
        began = time.monotonic()
        with self.life("local[2, 4]") as running:
            self.wait(
                running,
                lambda: all(committed_lsn(one) >= parse_lsn(end) for one in self.folders.values()),
            )
            self.figures.catch_up_seconds = round(time.monotonic() - began, 1)
            for folder in self.folders.values():
                running.ask("stop", folder)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Ask Snowflake; gives rows by lower-case names."""
        with self._snowflake.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            names = [column.name.lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def compare(self) -> None:
        """Check that nothing landed twice, and that every table in Snowflake equals its source."""
        landing = f"landing.{SCHEDULED}_LANDING"
        [counts] = self.query(
            'SELECT COUNT(*) AS n, COUNT(DISTINCT "_CHANNEL" || \':\' || "_OFFSET") AS named,'  # noqa: S608
            " COUNT(DISTINCT \"_LSN\" || ':' || \"_ORDINAL\" || ':' || order_id || ':' || line)"
            f" AS changes FROM {landing}"
        )
        assert counts["n"] > 0
        assert counts["n"] == counts["named"] == counts["changes"]
        self.figures.landed = counts["n"]
        run = self._snowflake.run_task(f"{SCHEDULED.upper()}_MERGE", schema="LANDING")
        assert run["state"] == "SUCCEEDED", run
        with self._server.connect(self._database) as db:
            for table in self.folders:
                rows = self.query(f"SELECT * FROM {table}")  # noqa: S608
                found = pa.Table.from_pylist(rows)
                self.figures.rows[table] = assert_same_rows(db, table, found)


def run_chain(
    server: PostgresServer,
    database: str,
    snowflake: SnowflakeEmulator,
    folder: Path,
    *,
    seconds: float,
    kills: int,
    rate: int,
) -> Figures:
    """Run the load at least so long and with so many kills; check; give the figures."""
    arguments = prepare_load(server, database, folder)
    chain, began = Chain(server, database, snowflake, folder), time.monotonic()
    with Load(server, database, arguments, rate) as load:
        chain.disturb(kills, random.Random(6))
        wait_until(lambda: time.monotonic() - began > seconds, seconds + 1)
    snowflake.clear_faults()
    chain.figures.transactions = load.transactions
    chain.catch_up()
    chain.figures.seconds = round(time.monotonic() - began, 1)
    chain.figures.faults = snowflake.faults_struck()
    chain.compare()
    return chain.figures


def main() -> None:
    """Run it by hand."""
    seconds, kills = float(sys.argv[1]), int(sys.argv[2])
    rate = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_server() as server,
        snowflake_emulator() as snowflake,
    ):
        figures = run_chain(
            server,
            server.create_database(),
            snowflake,
            Path(folder),
            seconds=seconds,
            kills=kills,
            rate=rate,
        )
    print(json.dumps(asdict(figures), indent=1))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
