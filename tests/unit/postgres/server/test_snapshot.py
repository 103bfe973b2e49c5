"""The snapshot: every row once, at one moment, whatever happens to the table meanwhile."""

from __future__ import annotations

import itertools
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AccessError, ResourceError
from penstock.postgres.catalog import read_table
from penstock.postgres.connection import ConnectionSettings
from penstock.postgres.publication import read_publication
from penstock.postgres.slot import create_slot
from penstock.postgres.snapshot import (
    BlockRange,
    plan_ranges,
    read_snapshot,
    relation_blocks,
    relation_leaves,
    snapshot_select,
)
from tests.unit.postgres.server.conftest import Place


@given(st.integers(0, 2**32), st.integers(1, 1000))
def test_ranges_cover_every_block_once_and_those_to_come(blocks: int, partitions: int) -> None:
    ranges = plan_ranges(blocks, partitions)
    assert 1 <= len(ranges) <= partitions
    assert ranges[0].start == 0
    assert ranges[-1].end is None
    for before, after in itertools.pairwise(ranges):
        assert before.end == after.start > before.start
    if blocks >= partitions:
        sizes = [(each.end or blocks) - each.start for each in ranges]
        assert max(sizes) - min(sizes) <= 1


def test_a_small_table_is_not_cut_into_nothing() -> None:
    assert plan_ranges(0, 8) == (BlockRange(0, None),)
    assert len(plan_ranges(3, 8)) == 3


def test_the_select_quotes_names_and_keeps_the_filter_apart() -> None:
    text = snapshot_select(['"a"', '"b"::text'], 'S"', "t.t", BlockRange(3, 9), "a > 1 OR b")
    assert text == (
        'SELECT "a", "b"::text FROM ONLY "S"""."t.t"'
        " WHERE ctid >= '(3,0)'::tid AND ctid < '(9,0)'::tid AND (a > 1 OR b)"
    )
    assert snapshot_select(["1"], "s", "t") == 'SELECT 1 FROM ONLY "s"."t"'


def ids(settings: ConnectionSettings, snapshot: str | None, *selects: str) -> list[int]:
    found: list[int] = []
    for select in selects:
        for batch in read_snapshot(settings, snapshot, select, batch_bytes=2000):
            found += batch.column(0).to_pylist()
    return sorted(found)


def test_all_ranges_are_the_table_at_one_moment(each_place: Place) -> None:
    place = each_place
    place.execute(
        "CREATE TABLE public.t (a int PRIMARY KEY, b text)",
        "INSERT INTO public.t SELECT g, repeat('x', 200) FROM generate_series(1, 3000) g",
    )
    table = read_table(place.control, "t")
    blocks = relation_blocks(place.control, table)
    assert blocks > 50
    with create_slot(place.settings, "snap", place.version) as slot:
        place.execute(
            "UPDATE public.t SET a = -a WHERE a % 3 = 0",
            "DELETE FROM public.t WHERE a % 3 = 1",
            "INSERT INTO public.t SELECT g, repeat('x', 200) FROM generate_series(5000, 9000) g",
        )
        selects = [snapshot_select(['"a"'], "public", "t", each) for each in plan_ranges(blocks, 7)]
        assert len(selects) == 7
        assert ids(place.settings, slot.snapshot_name, *selects) == list(range(1, 3001))
    place.execute("DELETE FROM public.t WHERE a > 0")
    assert ids(place.settings, None, *selects) == sorted(-a for a in range(3, 3001, 3))


def test_a_range_is_found_without_reading_the_rest(place: Place) -> None:
    place.execute("CREATE TABLE public.t (a int)", "INSERT INTO public.t VALUES (1)")
    select = snapshot_select(["a"], "public", "t", BlockRange(0, 1))
    plan = place.control.execute(f"EXPLAIN {select}".encode()).fetchall()
    assert "Tid Range Scan" in plan[0][0]


def test_rows_come_in_batches_of_about_the_size_asked_for(place: Place) -> None:
    place.execute(
        "CREATE TABLE public.t AS SELECT repeat('x', 1000) v FROM generate_series(1, 1000)"
    )
    select = snapshot_select(["v"], "public", "t")
    batches = list(read_snapshot(place.settings, None, select, batch_bytes=100_000))
    assert sum(batch.num_rows for batch in batches) == 1000
    assert max(batch.num_rows for batch in batches) < 150
    assert batches[0].schema.field("v").type == pa.string()


def test_an_empty_range_has_no_rows_and_no_error(place: Place) -> None:
    place.execute("CREATE TABLE public.t (a int)")
    assert ids(place.settings, None, snapshot_select(["a"], "public", "t")) == []


def test_partitions_are_read_as_the_relations_that_hold_the_rows(place: Place) -> None:
    place.execute(
        "CREATE TABLE public.p (a int, b int) PARTITION BY RANGE (a)",
        "CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (10)"
        " PARTITION BY LIST (b)",
        'CREATE TABLE public."P x" PARTITION OF public.p1 DEFAULT',
        "CREATE TABLE public.p2 (b int, gone text, a int)",
        "ALTER TABLE public.p2 DROP COLUMN gone",
        "ALTER TABLE public.p ATTACH PARTITION public.p2 FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE public.empty PARTITION OF public.p DEFAULT",
        "INSERT INTO public.p SELECT g, g FROM generate_series(0, 19) g",
    )
    table = read_table(place.control, "p")
    leaves = relation_leaves(place.control, table)
    assert {leaf.name for leaf in leaves} == {"P x", "p2", "empty"}
    assert {leaf.name: leaf.blocks for leaf in leaves}["empty"] == 0
    assert relation_blocks(place.control, table) == sum(leaf.blocks for leaf in leaves) == 2
    selects = [snapshot_select(['"a"'], leaf.schema, leaf.name) for leaf in leaves]
    assert ids(place.settings, None, *selects) == list(range(20))


def test_a_partitioned_table_without_partitions_has_no_rows_to_read(place: Place) -> None:
    place.execute("CREATE TABLE public.p (a int) PARTITION BY RANGE (a)")
    assert relation_leaves(place.control, read_table(place.control, "p")) == ()


def test_rows_of_tables_that_inherit_are_left_out(place: Place) -> None:
    place.execute(
        "CREATE TABLE public.t (a int)",
        "CREATE TABLE public.child () INHERITS (public.t)",
        "INSERT INTO public.t VALUES (1)",
        "INSERT INTO public.child VALUES (2)",
    )
    assert ids(place.settings, None, snapshot_select(["a"], "public", "t")) == [1]


def test_the_publication_s_row_filter_holds_in_partitions_too(place: Place) -> None:
    place.execute(
        "CREATE TYPE public.mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE public.p (a int PRIMARY KEY, m text) PARTITION BY RANGE (a)",
        "CREATE TABLE public.p1 PARTITION OF public.p DEFAULT",
        "INSERT INTO public.p SELECT g, 'm' FROM generate_series(1, 10) g",
        "CREATE PUBLICATION pub FOR TABLE public.p WHERE (a < 3 OR a > 8)"
        " WITH (publish_via_partition_root = true)",
    )
    publication = read_publication(place.control, "pub", place.version)
    assert publication is not None
    (published,) = publication.tables
    select = snapshot_select(["a"], "public", "p1", BlockRange(0, 1), published.row_filter)
    assert ids(place.settings, None, select) == [1, 2, 9, 10]


def test_a_snapshot_whose_holder_has_gone_is_told(each_place: Place) -> None:
    slot = create_slot(each_place.settings, "gone", each_place.version)
    slot.close()
    # The server drops it when it notices that the connection is closed.
    open_yet = "SELECT count(*) FROM pg_stat_replication"
    deadline = time.monotonic() + 20
    while each_place.control.execute(open_yet).fetchone() != (0,):
        assert time.monotonic() < deadline
    with pytest.raises(ResourceError, match="takes a new snapshot") as caught:
        ids(each_place.settings, slot.snapshot_name, "SELECT 1")
    assert caught.value.code == "SNAPSHOT_GONE"


def test_policies_on_rows_are_an_error_and_never_fewer_rows(place: Place, role: object) -> None:
    settings: ConnectionSettings = role()  # type: ignore[operator]
    place.execute(
        "CREATE TABLE public.t (a int)",
        "INSERT INTO public.t VALUES (1), (2)",
        "ALTER TABLE public.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON public.t USING (a = 1)",
        f"GRANT SELECT ON public.t TO {settings.user}",
    )
    with pytest.raises(AccessError, match="row-level security"):
        ids(settings, None, snapshot_select(["a"], "public", "t"))
