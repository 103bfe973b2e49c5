"""Publications: made when missing, reused when they serve, refused with what helps."""

from __future__ import annotations

import psycopg
import pytest

from penstock.errors import ConnectError, ResourceError
from penstock.postgres.catalog import read_table, read_tables
from penstock.postgres.publication import (
    create_statement,
    drop_publication,
    ensure_publication,
    published_tables_query,
    read_publication,
)
from tests.unit.postgres.server.conftest import Place


def published(place: Place, name: str) -> dict[str, tuple[tuple[str, ...], str | None]]:
    found = read_publication(place.control, name, place.version)
    assert found is not None
    rows = place.control.execute("SELECT oid::int8, relname FROM pg_class").fetchall()
    relations = dict(rows)
    return {relations[each.oid]: (each.columns, each.row_filter) for each in found.tables}


def test_a_missing_publication_is_made_of_exactly_the_tables(each_place: Place) -> None:
    each_place.execute(
        'CREATE TABLE public."O dd""" (a int PRIMARY KEY, b text)',
        "CREATE TABLE public.other (a int)",
        'CREATE TABLE public.child (c int) INHERITS (public."O dd""")',
    )
    tables = read_tables(each_place.control, '"O dd"""')
    name = 'pub "of" mine'
    made = ensure_publication(each_place.control, name, tables, each_place.version)

    assert made.publishes == {"insert", "update", "delete", "truncate"}
    assert (made.via_root, made.is_for_all_tables) == (True, False)
    assert published(each_place, name) == {'O dd"': (("a", "b"), None)}
    again = ensure_publication(each_place.control, name, tables, each_place.version)
    assert again == made
    drop_publication(each_place.control, name)
    assert read_publication(each_place.control, name, each_place.version) is None
    drop_publication(each_place.control, name)


def test_a_partitioned_table_is_published_as_itself(each_place: Place) -> None:
    each_place.execute(
        "CREATE TABLE public.p (a int) PARTITION BY RANGE (a)",
        "CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (10)",
    )
    tables = read_tables(each_place.control, "p")
    made = ensure_publication(each_place.control, "pub", tables, each_place.version)
    assert [each.oid for each in made.tables] == [tables[0].oid]


def test_row_filters_and_column_lists_are_told(each_place: Place) -> None:
    each_place.execute(
        "CREATE SCHEMA s",
        "CREATE TYPE s.mood AS ENUM ('sad', 'ok')",
        'CREATE TABLE public.t (a int PRIMARY KEY, b text, "C c" int, d text)',
        "CREATE TABLE public.whole (a int PRIMARY KEY)",
        'CREATE PUBLICATION pub FOR TABLE public.t (a, "C c") WHERE (a > 5 OR a < 0), public.whole',
    )
    tables = read_tables(each_place.control, "t, whole")
    ensure_publication(each_place.control, "pub", tables, each_place.version)
    filters = published(each_place, "pub")
    assert filters["whole"] == (("a",), None)
    columns, row_filter = filters["t"]
    assert columns == ("a", "C c")
    each_place.execute("INSERT INTO public.t SELECT g FROM generate_series(-1, 7) g")
    rows = each_place.control.execute(
        f"SELECT a FROM public.t WHERE {row_filter}".encode()  # noqa: S608 - from the catalog
    )
    assert rows.fetchall() == [(-1,), (6,), (7,)]


def test_generated_columns_are_published_from_18_on(each_place: Place) -> None:
    each_place.execute(
        "CREATE TABLE public.t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    tables = read_tables(each_place.control, "t")
    made = ensure_publication(each_place.control, "pub", tables, each_place.version)
    sent = ("a", "b") if each_place.version >= 180_000 else ("a",)
    assert made.tables[0].columns == sent
    each_place.execute("CREATE PUBLICATION plain FOR TABLE public.t")
    assert published(each_place, "plain") == {"t": (("a",), None)}


def test_a_publication_of_more_tables_serves(each_place: Place) -> None:
    each_place.execute(
        "CREATE TABLE public.t (a int PRIMARY KEY)",
        "CREATE PUBLICATION everything FOR ALL TABLES",
        "CREATE PUBLICATION by_schema FOR TABLES IN SCHEMA public",
    )
    tables = read_tables(each_place.control, "t")
    for name in ("everything", "by_schema"):
        found = ensure_publication(each_place.control, name, tables, each_place.version)
        assert found.table(tables[0].oid) is not None


@pytest.mark.parametrize(
    ("statement", "fact", "remedy"),
    [
        (
            "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish = 'insert, update')",
            "does not publish delete, truncate",
            "ALTER PUBLICATION \"pub\" SET (publish = 'insert, update, delete, truncate')",
        ),
        (
            "CREATE PUBLICATION pub FOR TABLE public.p",
            "does not publish table 'public.t'",
            'ALTER PUBLICATION "pub" ADD TABLE ONLY "public"."t"',
        ),
        (
            "CREATE PUBLICATION pub FOR TABLE public.t, public.p",
            "under the names of their partitions",
            'ALTER PUBLICATION "pub" SET (publish_via_partition_root = true)',
        ),
    ],
)
def test_one_that_does_not_serve_is_refused_and_its_remedy_works(
    place: Place, statement: str, fact: str, remedy: str
) -> None:
    place.execute(
        "CREATE TABLE public.t (a int PRIMARY KEY)",
        "CREATE TABLE public.p (a int PRIMARY KEY) PARTITION BY RANGE (a)",
        statement,
    )
    patterns = "t, p" if "partitions" in fact else "t"
    tables = read_tables(place.control, patterns)
    with pytest.raises(ResourceError) as caught:
        ensure_publication(place.control, "pub", tables, place.version)
    assert caught.value.code == "PUBLICATION_UNFIT"
    assert fact in caught.value.fact
    assert remedy in caught.value.remedy
    place.execute(remedy)
    ensure_publication(place.control, "pub", tables, place.version)


def test_a_locked_table_does_not_hold_the_start_up_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.postgres.publication._LOCK_TIMEOUT", "SET lock_timeout = '50ms'")
    place.execute("CREATE TABLE public.t (a int PRIMARY KEY)")
    tables = read_tables(place.control, "t")
    with psycopg.connect(place.server.url(place.database)) as other:
        other.execute("LOCK TABLE public.t")
        with pytest.raises(ConnectError, match="LOCK_TIMEOUT"):
            ensure_publication(place.control, "pub", tables, place.version)
    assert place.control.execute("SHOW lock_timeout").fetchone() == ("0",)
    ensure_publication(place.control, "pub", tables, place.version)


def test_the_sql_for_14_has_neither_lists_nor_filters_and_runs(place: Place) -> None:
    place.execute(
        "CREATE TABLE public.t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a) STORED)",
        "CREATE PUBLICATION pub FOR TABLE public.t WHERE (a > 1)",
    )
    query = published_tables_query(140_000)
    assert "g.attrs" in query
    rows = place.control.execute(query.encode(), {"name": "pub"}).fetchall()
    assert rows == [(read_table(place.control, "t").oid, ["a"], None)]


def test_generated_columns_are_asked_for_only_where_the_server_knows_them(place: Place) -> None:
    place.execute("CREATE TABLE public.t (a int)")
    tables = read_tables(place.control, "t")
    assert "generated" not in create_statement("p", tables, generated_columns=False)
    assert "publish_generated_columns" in create_statement("p", tables, generated_columns=True)
