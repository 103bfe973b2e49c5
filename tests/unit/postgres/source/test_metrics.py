"""The source's measurements: how far behind it is, in bytes and in time."""

from __future__ import annotations

import re
from typing import Any

import psycopg

from penstock._core.clock import ManualClock
from penstock.postgres.source.metrics import METRICS, WalClock, render_metrics
from tests.support.cdc import Stream
from tests.unit.postgres.source.test_delivery import fill

Db = psycopg.Connection[Any]


def test_a_position_is_as_old_as_what_was_written_after_it() -> None:
    clock = ManualClock()
    wal = WalClock(clock.monotonic)
    for end in (100, 200, 200, 300):
        wal.note(end)
        clock.advance(10)
    assert wal.age(300, 300) == 0
    assert wal.age(250, 300) == 10
    assert wal.age(200, 300) == 10
    assert wal.age(150, 300) == 30
    assert wal.age(0, 300) == 40
    # Nothing is known of it yet.
    assert wal.age(300, 400) == 0


def test_the_progress_tells_how_far_behind_the_query_is(db: Db, stream: Stream) -> None:
    stream.run()
    fill(db, 1, 100)
    stream.step()
    assert stream.reader is not None
    behind = stream.reader.reportLatestOffset()
    assert behind["walLagBytes"] > 0
    assert behind["slotStatus"] == "reserved"
    assert behind["slotLost"] == 0
    fill(db, 101, 101)
    stream.step()
    after = stream.reader.reportLatestOffset()
    assert after["walLagBytes"] < behind["walLagBytes"]
    assert after["unplannedWalBytes"] == 0
    assert after["planned"] == stream.offsets[-1]["lsn"]


def test_prometheus_gets_the_numbers(db: Db, stream: Stream) -> None:
    stream.run()
    fill(db, 1, 1)
    stream.run()
    assert stream.reader is not None
    values = stream.reader.reportLatestOffset()
    text = render_metrics(values, "s", "t")
    line = r'(# (HELP|TYPE) \w+ .+|penstock_postgres_\w+\{slot="s",table="t"\} [0-9.]+)'
    assert all(re.fullmatch(line, one) for one in text.splitlines())
    told = set(re.findall(r"^penstock_postgres_(\w+)\{", text, re.MULTILINE))
    # Without a limit on the server there is no such number.
    assert told == {name for name, _, _ in METRICS.values()} - {"safe_wal_bytes"}
    for name, kind, _ in METRICS.values():
        assert name.endswith("_total") == (kind == "counter")
