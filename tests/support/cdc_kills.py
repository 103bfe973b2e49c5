"""The proof by kills: queries on several tables, load on them, a driver that dies again and again.

`python -m tests.support.cdc_kills 60 5` runs it for 60 s with five kills and prints the figures.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from penstock.postgres.lsn import parse_lsn
from penstock.testing.postgres import PostgresServer, postgres_server
from tests.support.cdc_driver import PROGRAM, committed_lsn, runs, sink_batch, sink_rows
from tests.support.cdc_load import TABLES, Load, prepare_load
from tests.support.cdc_table import assert_same_table
from tests.support.source_cluster import Driver, driver
from tests.support.spark import wait_until

# Generous: the machine may be busy.
_PATIENCE_SECONDS = 120.0
_SETTINGS = {"spark.master": "local[2, 4]"}
# The table whose batches are held, so that they are surely run again.
_HELD = "orders"


@dataclass
class Figures:
    """What a run has seen."""

    seconds: float = 0.0
    catch_up_seconds: float = 0.0
    kills: int = 0
    transactions: int = 0
    batches: int = 0
    replays: int = 0
    # In the sink, and in the tables at the end.
    changes: int = 0
    rows: dict[str, int] = field(default_factory=dict)


class Killed:
    """Queries on all tables, in one driver after another."""

    def __init__(
        self, server: PostgresServer, database: str, folder: Path, tables: Sequence[str]
    ) -> None:
        self._server = server
        self._database = database
        self.folders = {table: folder / table for table in tables}
        self.figures = Figures()

    @contextmanager
    def life(self) -> Iterator[Driver]:
        """Run a driver with all queries; it may be dead at the end."""
        with driver(PROGRAM, **_SETTINGS) as running:
            for table, folder in self.folders.items():
                clear_half_written(folder)
                options = {
                    "url": self._server.url(self._database),
                    "table": table,
                    "heartbeatInterval": "1s",
                }
                running.ask("start", folder, options=options, trigger="500 milliseconds")
            yield running

    def kill(self, running: Driver) -> None:
        """Kill the driver and its JVM at once; their Python processes end by themselves."""
        below = running.process.children(recursive=True)
        try:
            for process in [*running.descendants("org.apache.spark.deploy"), running.process]:
                os.kill(process.pid, signal.SIGKILL)
            alive = psutil.wait_procs(below, timeout=30)[1]
            assert not alive, alive
        finally:
            for process in below:
                with suppress(psutil.Error):
                    process.kill()
        self.figures.kills += 1

    def wait(self, running: Driver, condition: Callable[[], bool]) -> None:
        """Wait for something that the queries do; they must not fail."""

        def look() -> bool:
            self.check(running)
            return condition()

        wait_until(look, _PATIENCE_SECONDS, running.log_tail)

    def check(self, running: Driver) -> None:
        """Check that no query has failed."""
        for table, folder in self.folders.items():
            error = running.ask("look", folder)["error"]
            assert error is None, f"{table}: {error}"

    def kill_at_a_held_batch(self, number: int) -> None:
        """Kill when a batch, of this number or later, is in the sink and not in the commit log."""
        folder = self.folders[_HELD]
        (folder / "held").unlink(missing_ok=True)
        if not number:
            (folder / "hold").touch()
        with self.life() as running:
            if number:
                self.wait(running, lambda: len(runs(folder)) >= number)
                (folder / "hold").touch()
            self.wait(running, (folder / "held").exists)
            held = int((folder / "held").read_text())
            shutil.copytree(folder / "out" / str(held), folder / "first" / str(held))
            self.kill(running)
        (folder / "hold").unlink()

    def kill_at_any_moment(self, chance: random.Random) -> None:
        """Kill some time after every query has done something again."""
        before = {folder: len(runs(folder)) for folder in self.folders.values()}
        with self.life() as running:

            def has_moved() -> bool:
                return all(len(runs(folder)) > count for folder, count in before.items())

            self.wait(running, has_moved)
            at = time.monotonic() + chance.uniform(0.0, 2.0)
            wait_until(lambda: time.monotonic() > at)
            self.kill(running)

    def catch_up(self) -> None:
        """Run until everything is in the sinks and in Spark's commit logs."""
        [(end,)] = self._server.execute("SELECT pg_current_wal_flush_lsn()::text", self._database)
        began = time.monotonic()
        with self.life() as running:

            def is_there() -> bool:
                return all(committed_lsn(one) >= parse_lsn(end) for one in self.folders.values())

            self.wait(running, is_there)
            self.figures.catch_up_seconds = round(time.monotonic() - began, 1)
            for folder in self.folders.values():
                running.ask("stop", folder)

    def compare(self) -> None:
        """Check that every table rebuilt from its stream equals its source."""
        figures = self.figures
        with self._server.connect(self._database) as db:
            for table, folder in self.folders.items():
                changes = sink_rows(folder)
                figures.rows[table] = assert_same_table(db, table, changes, TABLES[table])
                figures.changes += len(changes)
                numbers = [number for number, _ in runs(folder)]
                figures.batches += len(set(numbers))
                figures.replays += len(numbers) - len(set(numbers))

    def compare_replays(self) -> dict[int, int]:
        """Check that held batches of changes came again with the same rows; their rows, by number.

        The snapshot does not: it is another one.
        """
        folder, found = self.folders[_HELD], {}
        order = [("_lsn", "ascending"), ("_ordinal", "ascending")]
        for path in (folder / "first").iterdir():
            if path.name != "0":
                first = sink_batch(folder, int(path.name), "first")
                again = sink_batch(folder, int(path.name))
                assert first.sort_by(order) == again.sort_by(order)
                found[int(path.name)] = len(again)
        return found


def clear_half_written(folder: Path) -> None:
    """Remove what a kill in the middle of the very first offset leaves: Spark refuses to start.

    Its message says to delete the checkpoint, and there is nothing else in it yet.
    """
    offsets = folder / "checkpoint" / "offsets"
    if offsets.exists() and not (offsets / "0").exists():
        shutil.rmtree(offsets)


def run_with_kills(
    server: PostgresServer,
    database: str,
    folder: Path,
    *,
    seconds: float,
    kills: int,
    rate: int,
    tables: Sequence[str] = tuple(TABLES),
) -> Figures:
    """Run the load at least so long and with so many kills, two or more; check; give the figures.

    The first driver dies when a snapshot is in the sink and not committed, the second when a batch
    of changes is; the others at any moment.
    """
    arguments = prepare_load(server, database, folder)
    killed, began = Killed(server, database, folder, tables), time.monotonic()
    chance = random.Random(5)
    (folder / _HELD).mkdir()
    with Load(server, database, arguments, rate) as load:
        killed.kill_at_a_held_batch(0)
        killed.kill_at_a_held_batch(2)
        for _ in range(kills - 2):
            killed.kill_at_any_moment(chance)
        wait_until(lambda: time.monotonic() - began > seconds, seconds + 1)
    killed.figures.transactions = load.transactions
    killed.catch_up()
    killed.figures.seconds = round(time.monotonic() - began, 1)
    killed.compare()
    assert killed.compare_replays()
    return killed.figures


def main() -> None:
    """Run it by hand."""
    seconds, kills = float(sys.argv[1]), int(sys.argv[2])
    rate = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        figures = run_with_kills(
            server, server.create_database(), Path(folder), seconds=seconds, kills=kills, rate=rate
        )
    print(json.dumps(asdict(figures), indent=1))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
