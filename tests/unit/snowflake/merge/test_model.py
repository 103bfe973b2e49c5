"""The merge against a dictionary: random histories, cut into batches, landed in random order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakesnow.instance import FakeSnow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.snowflake.merge import apply_merge
from tests.support.merge import Change, MergeTables

COLUMNS = ("a", "b", "c")
Row = dict[str, Any]


@dataclass
class History:
    """A source table, and the change rows that PostgreSQL's stream has of it."""

    rows: dict[int, Row] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    # After each change, what the target has to be.
    states: list[dict[int, Row]] = field(default_factory=list)
    # After which changes a transaction ends.
    ends: list[int] = field(default_factory=list)
    lsn: int = 1
    place: int = 0
    value: int = 0

    def emit(self, op: str, values: Row, unchanged: tuple[str, ...] = (), half: int = 0) -> None:
        self.changes.append(Change(op, values, (self.lsn, self.place * 2 + half), unchanged))
        self.states.append({key: dict(row) for key, row in self.rows.items()})

    def new_value(self, is_null: bool) -> str | None:
        self.value += 1
        return None if is_null else f"v{self.value}"

    def apply(self, step: tuple[str, int, int, frozenset[str], frozenset[str], bool]) -> None:
        kind, key, other, changed, nulls, is_sent = step
        self.place += 1
        if kind == "commit":
            self.commit()
        elif kind == "truncate":
            self.rows.clear()
            self.emit("truncate", {})
        elif key not in self.rows:
            self.rows[key] = {name: self.new_value(name in nulls) for name in COLUMNS}
            self.emit("insert", {"id": key, **self.rows[key]})
        elif kind == "delete":
            del self.rows[key]
            self.emit("delete", {"id": key})
        else:
            row = self.rows[key]
            row.update({name: self.new_value(name in nulls) for name in changed})
            unchanged = () if is_sent else tuple(name for name in COLUMNS if name not in changed)
            sent = {name: None if name in unchanged else row[name] for name in COLUMNS}
            if kind == "move" and other not in self.rows:
                del self.rows[key]
                self.emit("delete", {"id": key})
                self.rows[other] = row
                self.emit("insert", {"id": other, **sent}, unchanged, half=1)
            else:
                self.emit("update", {"id": key, **sent}, unchanged)

    def commit(self) -> None:
        self.lsn += 3
        self.place = 0
        if self.changes and (not self.ends or self.ends[-1] != len(self.changes)):
            self.ends.append(len(self.changes))


keys = st.integers(1, 4)
names = st.frozensets(st.sampled_from(COLUMNS))
kinds = st.sampled_from(
    ["update"] * 5 + ["move"] * 3 + ["delete"] * 2 + ["commit"] * 3 + ["truncate"]
)
steps = st.tuples(kinds, keys, keys, names, names, st.booleans())


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for step in draw(st.lists(steps, min_size=1, max_size=25)):
        history.apply(step)
    history.commit()
    return history


@pytest.fixture(scope="module")
def tables(snow: FakeSnow) -> Iterator[MergeTables]:
    made = MergeTables(snow, {"id": "NUMBER(10,0)", **dict.fromkeys(COLUMNS, "VARCHAR")}, ["id"])
    yield made
    made.close()


def expected(history: History, count: int) -> list[tuple[Any, ...]]:
    rows = history.states[count - 1] if count else {}
    return sorted(((key, *row.values()) for key, row in rows.items()), key=repr)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), data=st.data())
def test_batches_of_whole_transactions_give_the_source_s_rows(
    tables: MergeTables, history: History, data: st.DataObject
) -> None:
    tables.clear()
    ends = [end for end in history.ends if data.draw(st.booleans()) or end == history.ends[-1]]
    start = 0
    for end in ends:
        batch = data.draw(st.permutations(history.changes[start:end]))
        for change in batch:
            tables.land([change], channel=f"c{data.draw(st.integers(0, 2))}")

        apply_merge(tables.connection, tables.plan)

        assert tables.target() == expected(history, end)
        assert tables.landed_count() == 0
        start = end


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), data=st.data())
def test_batches_cut_anywhere_in_a_channel_give_the_source_s_rows(
    tables: MergeTables, history: History, data: st.DataObject
) -> None:
    tables.clear()
    count = len(history.changes)
    start = 0
    while start < count:
        end = data.draw(st.integers(start + 1, count))
        tables.land(history.changes[start:end])

        apply_merge(tables.connection, tables.plan, is_complete=False)

        assert tables.target() == expected(history, end)
        assert tables.landed_count() == (history.changes[end - 1].op == "delete")
        start = end
