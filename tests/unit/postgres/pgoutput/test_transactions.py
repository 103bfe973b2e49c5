from __future__ import annotations

import datetime

import pytest

from penstock.errors import WireError
from penstock.postgres.lsn import format_lsn, parse_lsn
from penstock.postgres.pgoutput import Decoder
from tests.support.pgoutput import SLOT_NAME, Slot, decode, to_batch


@pytest.fixture
def table(slot: Slot) -> Slot:
    slot.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    slot.create()
    return slot


def ids(slot: Slot, **more: int) -> list[str | None]:
    return [row.values[0] for row in slot.rows(**more)]


def position(slot: Slot) -> int:
    row = slot.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def test_rows_carry_their_transaction(table: Slot) -> None:
    table.run("BEGIN", "INSERT INTO t VALUES (1), (2)")
    xid = table.connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    before = position(table)
    table.run("COMMIT")

    first, second = table.rows()

    assert xid == (first.xid,)
    assert (first.xid, first.lsn, first.commit_time_us) == second[5:1:-1][:1] + second[
        2:3
    ] + second[4:5]
    assert before <= first.lsn < position(table)
    now = datetime.datetime.now(datetime.UTC).timestamp() * 1e6
    assert abs(now - first.commit_time_us) < 120e6


def test_a_range_takes_the_transactions_that_commit_in_it(table: Slot) -> None:
    edges = []
    for number in range(5):
        edges.append(position(table))
        table.run(f"INSERT INTO t VALUES ({number})")  # noqa: S608
    lsns = [row.lsn for row in table.rows()]

    assert ids(table, start_lsn=edges[1], end_lsn=edges[3]) == ["1", "2"]
    # The start is in, the end is out.
    assert ids(table, start_lsn=lsns[1], end_lsn=lsns[3]) == ["1", "2"]
    assert ids(table, start_lsn=lsns[1] + 1, end_lsn=lsns[3] + 1) == ["2", "3"]
    assert ids(table, start_lsn=lsns[4] + 1) == []


def test_the_range_agrees_with_the_slot_itself(table: Slot) -> None:
    table.run("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    edge = position(table)
    table.run("INSERT INTO t VALUES (4)")
    assert ids(table, start_lsn=edge) == ["4"]

    table.run(f"SELECT pg_replication_slot_advance('{SLOT_NAME}', '{format_lsn(edge)}')")

    assert ids(table) == ["4"]


def test_a_definition_holds_though_its_transaction_is_out_of_range(table: Slot) -> None:
    table.run("INSERT INTO t VALUES (1)")
    edge = position(table)
    table.run("INSERT INTO t VALUES (2)")
    asked = []

    rows = table.rows(start_lsn=edge, wanted=lambda relation: not asked.append(relation.name))

    assert [row.values[0] for row in rows] == ["2"]
    assert asked == ["t"]


def test_what_was_rolled_back_does_not_come_and_does_not_count(table: Slot) -> None:
    table.run(
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT a",
        "INSERT INTO t VALUES (2)",
        "ROLLBACK TO a",
        "INSERT INTO t VALUES (3)",
        "SAVEPOINT b",
        "INSERT INTO t VALUES (4)",
        "RELEASE b",
        "COMMIT",
        "BEGIN",
        "INSERT INTO t VALUES (5)",
        "ROLLBACK",
    )

    rows = table.rows()

    assert [(row.ordinal, row.values[0]) for row in rows] == [(0, "1"), (2, "3"), (4, "4")]
    assert len({row.xid for row in rows}) == 1


def test_a_prepared_transaction_comes_when_it_is_committed(table: Slot) -> None:
    table.run(
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "PREPARE TRANSACTION 'kept'",
        "INSERT INTO t VALUES (2)",
        "BEGIN",
        "INSERT INTO t VALUES (3)",
        "PREPARE TRANSACTION 'dropped'",
        "ROLLBACK PREPARED 'dropped'",
    )
    assert ids(table) == ["2"]
    edge = position(table)
    table.run("COMMIT PREPARED 'kept'")

    assert ids(table) == ["2", "1"]
    assert ids(table, start_lsn=edge) == ["1"]


def test_how_batches_are_cut_changes_nothing(table: Slot) -> None:
    table.transaction("INSERT INTO t SELECT i, 'v' FROM generate_series(0, 5) i", "TRUNCATE t")
    table.transaction("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET id = 2", "DELETE FROM t")
    table.run("INSERT INTO t VALUES (9)")
    messages = table.messages()
    whole = decode([to_batch(messages)])

    for size in range(1, len(messages)):
        parts = [messages[i : i + size] for i in range(0, len(messages), size)]
        assert decode([to_batch(part) for part in parts]) == whole


def test_the_servers_own_batches_give_the_same_rows(table: Slot) -> None:
    table.run("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 30000) i")
    batches = table.peek(batch_bytes=100_000)
    rows = decode(batches)

    assert len(batches) > 5
    assert [row.values for row in rows] == [(str(i), f"v{i}") for i in range(1, 30001)]
    assert [row.ordinal for row in rows] == list(range(0, 60000, 2))


def test_an_end_in_mid_transaction_is_an_error(table: Slot) -> None:
    table.run("INSERT INTO t VALUES (1)")
    messages = table.messages()
    decoder = Decoder(0, 2**64 - 1)
    decoder.feed(to_batch(messages[:-1]))
    with pytest.raises(WireError, match="end in the middle of a transaction"):
        decoder.finish()

    decoder.feed(to_batch(messages[-1:]))
    decoder.finish()


def test_nothing_gives_nothing() -> None:
    decoder = Decoder(0, 1)

    assert decoder.feed(to_batch([])) == []
    decoder.finish()
