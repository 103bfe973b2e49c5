"""SQL through the official connector, where the sink and the merge need it right."""

# ruff: noqa: S608 - names are of these tests, tokens are no secrets

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.support.snowflake import Lake


def test_types_are_described_as_they_were_declared(lake: Lake) -> None:
    types = {
        "A": "NUMBER(10,2)",
        "B": "NUMBER(38,0)",
        "C": "FLOAT",
        "D": "BOOLEAN",
        "E": "VARCHAR(16777216)",
        "F": "VARCHAR(7)",
        "G": "BINARY(8388608)",
        "H": "DATE",
        "I": "TIME(9)",
        "J": "TIMESTAMP_NTZ(9)",
        "K": "TIMESTAMP_LTZ(6)",
        "L": "TIMESTAMP_TZ(9)",
        "M": "VARIANT",
        "N": "ARRAY",
        "O": "OBJECT",
    }
    table = lake.table(", ".join(f"{name} {kind}" for name, kind in types.items()))
    assert {row[0]: row[1] for row in lake.run(f"DESCRIBE TABLE {table}")} == types


def test_nulls_of_all_types_arrive_as_nulls(lake: Lake) -> None:
    types = (
        *("NUMBER(10,2)", "FLOAT", "BOOLEAN", "VARCHAR", "BINARY", "DATE", "TIME"),
        *("TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ", "VARIANT", "ARRAY", "OBJECT"),
    )
    columns = [f"C{number} {kind}" for number, kind in enumerate(types)]
    table = lake.table(", ".join(columns))
    lake.run(
        f"INSERT INTO {table} (C7, C9) VALUES ('2026-01-02 03:04:05', '2026-01-02 03:04:05+00')"
    )
    lake.run(f"INSERT INTO {table} (C0) VALUES (NULL)")
    full, empty = sorted(lake.run(f"SELECT * FROM {table}"), key=lambda row: row[7] is None)
    assert (full[7].year, full[9].year) == (2026, 2026)
    assert set(empty) == {None}


def test_a_table_changes_its_form(lake: Lake) -> None:
    table = lake.table("A NUMBER(5,0) NOT NULL, B VARCHAR(5)")
    lake.run(f"INSERT INTO {table} VALUES (1, 'x')")
    for change in (
        "ADD COLUMN IF NOT EXISTS C TIMESTAMP_TZ",
        "ADD COLUMN IF NOT EXISTS C TIMESTAMP_TZ",
        'ADD COLUMN "d e" ARRAY, F NUMBER(3,1)',
        "ALTER COLUMN A SET DATA TYPE NUMBER(38,0)",
        "ALTER COLUMN A DROP NOT NULL",
        "ALTER COLUMN B SET DATA TYPE VARCHAR(50)",
    ):
        lake.run(f"ALTER TABLE {table} {change}")
    found = {row[0]: (row[1], row[3]) for row in lake.run(f"DESCRIBE TABLE {table}")}
    assert found == {
        "A": ("NUMBER(38,0)", "Y"),
        "B": ("VARCHAR(50)", "Y"),
        "C": ("TIMESTAMP_TZ(9)", "Y"),
        "d e": ("ARRAY", "Y"),
        "F": ("NUMBER(3,1)", "Y"),
    }


@pytest.mark.parametrize("name", ['"', "'", "a.b", "Ünïcode \u96ea", "select", "tab\there", "$1"])
def test_a_quoted_name_is_taken_letter_for_letter(lake: Lake, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    lake.run(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
    where = f"PENSTOCK.{quoted}.{quoted}"
    lake.run(f"CREATE TABLE IF NOT EXISTS {where} ({quoted} NUMBER(38,0))")
    lake.run(f"INSERT INTO {where} ({quoted}) VALUES (1)")
    assert lake.run(f"SELECT {quoted} FROM {where}") == [(1,)]
    assert [row[0] for row in lake.run(f"DESCRIBE TABLE {where}")] == [name]
    with lake.emulator.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE SCHEMA PENSTOCK.{quoted}")
        assert cursor.execute(f"SELECT COUNT(*) FROM {quoted}").fetchall() == [(1,)]
    lake.run(f"DROP TABLE {where}")


def test_merge_with_every_kind_of_branch(lake: Lake) -> None:
    target = lake.table("ID NUMBER(10,0), V VARCHAR, N NUMBER(10,2)")
    source = lake.table("ID NUMBER(10,0), V VARCHAR, OP VARCHAR")
    lake.run(f"INSERT INTO {target} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    lake.run(f"INSERT INTO {source} VALUES (1, NULL, 'u'), (2, NULL, 'd'), (4, 'D', 'i')")
    merge = (
        f"MERGE INTO {target} T USING (SELECT * FROM {source}) S ON T.ID = S.ID "
        "WHEN MATCHED AND S.OP = 'd' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET T.V = IFF(S.V IS NULL, T.V || '!', S.V), N = T.N + 1 "
        "WHEN NOT MATCHED AND S.OP <> 'd' THEN INSERT (ID, V) VALUES (S.ID, S.V)"
    )
    assert lake.run(merge) == [(1, 1, 1)]
    assert lake.run(f"SELECT * FROM {target} ORDER BY ID") == [
        (1, "a!", Decimal("2.00")),
        (3, "c", Decimal("3.00")),
        (4, "D", None),
    ]
    lake.run(f"INSERT INTO {source} VALUES (1, 'twice', 'u')")
    with pytest.raises(ProgrammingError) as caught:
        lake.run(merge)
    assert caught.value.errno == 100090


def test_a_transaction_is_not_disturbed_by_rows_that_come_in(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    client = lake.bare(table)
    token = client.open()[1]["next_continuation_token"]
    assert client.append(token, b'{"ID": 1}')[0] == 200
    with lake.emulator.connect() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN TRANSACTION")
        cursor.execute(f"DELETE FROM {table} WHERE ID = 1")
        assert client.append("1_1", b'{"ID": 2}', request="r2")[0] == 200
        cursor.execute("COMMIT")
    assert lake.run(f"SELECT ID FROM {table}") == [(2,)]


def test_a_rollback_undoes(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    with lake.emulator.connect() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO {table} VALUES (1)")
        cursor.execute("ROLLBACK")
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO {table} VALUES (2)")
        # DDL commits what was open.
        cursor.execute(f"ALTER TABLE {table} ADD COLUMN X VARCHAR")
        cursor.execute("ROLLBACK")
    assert lake.run(f"SELECT ID FROM {table}") == [(2,)]


def test_two_transactions_that_change_one_table_wait_for_each_other(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    lake.run(f"INSERT INTO {table} VALUES (0)")
    first, second = lake.emulator.connect(), lake.emulator.connect()
    first.cursor().execute("BEGIN")
    first.cursor().execute(f"UPDATE {table} SET ID = ID + 1")
    other = threading.Thread(
        target=lambda: second.cursor().execute(f"UPDATE {table} SET ID = ID + 10")
    )
    other.start()
    first.cursor().execute("COMMIT")
    other.join()
    first.close()
    second.close()
    assert lake.run(f"SELECT ID FROM {table}") == [(11,)]


def test_a_session_that_ends_gives_its_lock_back(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    lake.run(f"INSERT INTO {table} VALUES (1)")
    connection = lake.emulator.connect()
    connection.cursor().execute("BEGIN")
    connection.cursor().execute(f"DELETE FROM {table}")
    connection.close()
    lake.run(f"UPDATE {table} SET ID = 2")
    assert lake.run(f"SELECT ID FROM {table}") == [(2,)]


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("SELECT * FROM NOWHERE", 2003),
        ("SELECT NOTHING FROM PENSTOCK.INFORMATION_SCHEMA.TABLES", 904),
        ("SELEC 1", 1003),
        ("SELECT 'x'::NUMBER", 100038),
        ("SELECT SYSTEM$SOMETHING('x')", 2140),
        ("CREATE TABLE ONCE (A INT); ", 2002),
    ],
)
def test_an_error_has_snowflake_s_number(lake: Lake, statement: str, number: int) -> None:
    lake.run("CREATE TABLE IF NOT EXISTS ONCE (A INT)")
    with pytest.raises(ProgrammingError) as caught:
        lake.run(statement)
    assert caught.value.errno == number


def test_warehouse_statements_are_counted(lake: Lake) -> None:
    table = lake.table("ID NUMBER(38,0)")
    before = lake.emulator.warehouse_statements()
    for free in (f"SELECT COUNT(*) FROM {table}", f"DESCRIBE TABLE {table}", "SELECT 1"):
        lake.run(free)
    assert lake.emulator.warehouse_statements() == before
    lake.run(f"INSERT INTO {table} VALUES (1)")
    lake.run(f"SELECT * FROM {table}")
    assert lake.emulator.warehouse_statements() == before + 2
