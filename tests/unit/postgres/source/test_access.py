"""Who may read, and what is said when a right is missing; secrets stay secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from penstock.errors import PenstockError
from penstock.testing.postgres import PostgresServer
from tests.support.cdc import Stream, to_executor

Make = Callable[..., Stream]
Db = psycopg.Connection[Any]
PASSWORD = "s3cr3t w@rd"  # noqa: S105 - of a server that lives for a test
# Exactly what a role needs that is to make its own publication, on a table that it does not own.
GRANTS = {
    "SELECT": "GRANT SELECT ON orders TO reader",
    "REPLICATION": "ALTER ROLE reader REPLICATION",
}


@pytest.fixture
def reader_url(postgres: PostgresServer, url: str, db: Db) -> Iterator[str]:
    db.execute(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    # The owner of the table has made the publication.
    db.execute("CREATE PUBLICATION penstock_public_orders FOR TABLE orders")
    db.execute("INSERT INTO orders VALUES (1, 'a')")
    host, name = url.rsplit("@", 1)[1].split("/")
    yield f"postgresql://reader:{quote(PASSWORD, safe='')}@{host}/{name}"
    db.execute("DROP OWNED BY reader")
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'")
    db.execute("DROP ROLE reader")


def test_a_role_with_only_what_is_needed_works(db: Db, reader_url: str) -> None:
    for grant in GRANTS.values():
        db.execute(grant)
    stream = Stream(reader_url)
    try:
        assert [row["id"] for row in stream.run()] == [1]
        db.execute("INSERT INTO orders VALUES (2, 'b')")
        assert [row["id"] for row in stream.run()] == [2]
    finally:
        stream.crash()
        db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.mark.parametrize("missing", list(GRANTS))
def test_one_grant_fewer_is_an_error_that_names_it(db: Db, reader_url: str, missing: str) -> None:
    for name, grant in GRANTS.items():
        if name != missing:
            db.execute(grant)
    stream = Stream(reader_url)
    with pytest.raises(PenstockError) as caught:
        stream.step()
    assert missing in caught.value.remedy
    assert '"reader"' in caught.value.remedy or "reader" in caught.value.remedy
    assert stream.offsets == []
    assert db.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def test_a_wrong_password_is_an_error_at_once_and_is_not_shown(reader_url: str) -> None:
    wrong = reader_url.replace(quote(PASSWORD, safe=""), "hunter2")
    with pytest.raises(PenstockError) as caught:
        Stream(wrong).start()
    assert "reader" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_password_is_shown_nowhere(db: Db, reader_url: str) -> None:
    for grant in GRANTS.values():
        db.execute(grant)
    stream = Stream(reader_url)
    try:
        reader = stream.start()
        first = reader.initialOffset()
        end = reader.latestOffset(first, None)  # type: ignore[arg-type]
        partitions = reader.partitions(first, end)
        shown = [repr(stream.options), repr(partitions), str(first), str(end)]
        shown.append(str(reader.reportLatestOffset()))
        assert not [text for text in shown if "s3cr3t" in text]
        # But it gets to the tasks.
        assert [batch.num_rows for batch in reader.read(to_executor(partitions[0]))]
    finally:
        stream.crash()
        db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_a_server_that_is_not_there_is_an_error_within_seconds() -> None:
    stream = Stream("postgresql://nobody@127.0.0.1:1/none", retryTimeout="0s")
    with pytest.raises(PenstockError) as caught:
        stream.start()
    assert "127.0.0.1:1" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"table": "public.order"}, "orders"),
        ({"slot": "Not-Allowed"}, "slot"),
        ({"snapshotMode": "sometimes"}, "initial"),
        ({"tabble": "x"}, "table"),
    ],
)
def test_wrong_options_are_named(db: Db, make: Make, options: dict[str, str], word: str) -> None:
    stream = make()
    stream.raw |= options
    with pytest.raises(PenstockError) as caught:
        stream.start()
    assert word in str(caught.value)
