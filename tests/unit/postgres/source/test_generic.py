"""Rows of many tables in one form: every value under its name, row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.postgres.pgoutput import Op, Relation, RelationColumn, RelationRows
from penstock.postgres.source.generic import VALUES_TYPE, change_values, value_maps


def rows(
    ops: list[Op], unchanged: list[bool] | None = None, replica_identity: str = "d"
) -> RelationRows:
    columns = (
        RelationColumn("id", 20, -1, is_key=True),
        RelationColumn("note", 25, -1, is_key=replica_identity == "f"),
    )
    count = len(ops)
    numbers = np.arange(count, dtype=np.int64)
    mask = None if unchanged is None else np.array(unchanged)
    notes = [None if unchanged and unchanged[n] else f"n{n}" for n in range(count)]
    return RelationRows(
        relation=Relation(1, "public", "t", replica_identity, columns),
        op=np.array(ops, np.uint8),
        lsn=numbers.astype(np.uint64),
        ordinal=numbers,
        commit_time_us=numbers,
        xid=numbers,
        columns=[pa.array([str(n) for n in range(count)]), pa.array(notes, pa.string())],
        unchanged=[None, mask],
    )


def test_each_row_has_its_values() -> None:
    made = change_values(rows([Op.INSERT, Op.UPDATE]))
    assert made.type == VALUES_TYPE
    assert made.to_pylist() == [[("id", "0"), ("note", "n0")], [("id", "1"), ("note", "n1")]]


def test_what_was_not_sent_is_not_there() -> None:
    made = change_values(rows([Op.UPDATE, Op.UPDATE], unchanged=[True, False]))
    assert made.to_pylist() == [[("id", "0")], [("id", "1"), ("note", "n1")]]


def test_a_delete_has_its_key_and_a_truncate_nothing() -> None:
    made = change_values(rows([Op.DELETE, Op.TRUNCATE, Op.INSERT]))
    assert [len(one) for one in made.to_pylist()] == [1, 0, 2]
    full = change_values(rows([Op.DELETE], replica_identity="f"))
    assert full.to_pylist() == [[("id", "0"), ("note", "n0")]]


def test_a_null_is_a_value() -> None:
    made = value_maps(["a", "b"], [pa.array([None, "1"]), pa.array(["x", None])], None, 2)
    assert made.to_pylist() == [[("a", None), ("b", "x")], [("a", "1"), ("b", None)]]


def test_no_rows_and_no_columns_are_no_trouble() -> None:
    assert value_maps(["a"], [pa.array([], pa.string())], None, 0).to_pylist() == []
    assert value_maps([], [], None, 2).to_pylist() == [[], []]
