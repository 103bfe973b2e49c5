"""The catalog: tables found as users mean them, types as trees, and reasons for what is unfit."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError, ResourceError
from penstock.postgres.catalog import read_table, read_tables
from penstock.postgres.model import Kind, PgType
from penstock.postgres.server import ServerFacts, check_can_stream, current_lsn, server_facts
from penstock.testing.postgres import PostgresServer
from tests.unit.postgres.server.conftest import Place


def names(place: Place, patterns: str | list[str]) -> list[str]:
    return [table.full_name for table in read_tables(place.control, patterns)]


def test_a_table_is_read_with_its_columns_and_keys(each_place: Place) -> None:
    each_place.execute(
        "CREATE TABLE public.orders (b int, gone text, a bigint NOT NULL, c varchar(7),"
        " d int GENERATED ALWAYS AS (b * 2) STORED, PRIMARY KEY (a, b))",
        "ALTER TABLE public.orders DROP COLUMN gone",
    )
    table = read_table(each_place.control, "public.orders")

    assert (table.full_name, table.kind, table.replica_identity) == ("public.orders", "r", "d")
    assert [column.name for column in table.columns] == ["b", "a", "c", "d"]
    assert [column.number for column in table.columns] == [1, 3, 4, 5]
    assert [column.is_not_null for column in table.columns] == [True, True, False, False]
    assert [column.is_key for column in table.columns] == [True, True, False, False]
    assert [column.generated for column in table.columns] == ["", "", "", "s"]
    assert [column.type.name for column in table.columns] == ["int4", "int8", "varchar", "int4"]
    assert table.columns[2].type.typmod == 11
    assert table.primary_key == ("a", "b")


@pytest.mark.parametrize(
    ("identity", "keys"),
    [
        ("DEFAULT", {"a"}),
        ("FULL", {"a", "b", "c"}),
        ("NOTHING", set()),
        ("USING INDEX by_b", {"b", "c"}),
    ],
)
def test_keys_are_those_of_the_replica_identity(
    place: Place, identity: str, keys: set[str]
) -> None:
    place.execute(
        "CREATE TABLE public.t (a int PRIMARY KEY, b int NOT NULL, c int NOT NULL)",
        "CREATE UNIQUE INDEX by_b ON public.t (c, b)",
        f"ALTER TABLE public.t REPLICA IDENTITY {identity}",
    )
    table = read_table(place.control, "t")
    assert {column.name for column in table.columns if column.is_key} == keys
    assert table.primary_key == ("a",)


def test_a_virtual_generated_column_is_marked(place: Place) -> None:
    place.execute("CREATE TABLE public.t (a int, b int GENERATED ALWAYS AS (a) VIRTUAL)")
    assert [column.generated for column in read_table(place.control, "t").columns] == ["", "v"]


def column_type(place: Place, written: str) -> PgType:
    place.execute(f"CREATE TABLE public.typed (v {written})")
    (column,) = read_table(place.control, "public.typed").columns
    return column.type


def test_a_number_keeps_its_precision_inside_of_anything(place: Place) -> None:
    place.execute("CREATE DOMAIN public.money2 AS numeric(12, 2)")
    typmod = (12 << 16 | 2) + 4
    plain = column_type(place, "numeric(12, 2)")
    assert (plain.kind, plain.typmod, plain.inner) == (Kind.BASE, typmod, None)
    place.execute("DROP TABLE public.typed")
    array = column_type(place, "numeric(12, 2)[][]")
    assert (array.kind, array.inner) == (Kind.ARRAY, plain)
    place.execute("DROP TABLE public.typed")
    domain = column_type(place, "public.money2")
    assert (domain.kind, domain.name, domain.inner) == (Kind.DOMAIN, "money2", plain)
    assert domain.typmod == typmod


def test_types_are_trees(each_place: Place) -> None:
    each_place.execute(
        "CREATE TYPE public.mood AS ENUM ('sad', 'ok')",
        'CREATE TYPE public.pair AS ("First One" int, moods public.mood[], span int4range)',
        "CREATE DOMAIN public.pairs AS public.pair[]",
        "CREATE DOMAIN public.nested AS public.pairs",
    )
    tree = column_type(each_place, "public.nested")
    assert (tree.kind, tree.name) == (Kind.DOMAIN, "nested")
    assert tree.inner is not None
    assert (tree.inner.kind, tree.inner.name) == (Kind.DOMAIN, "pairs")
    array = tree.inner.inner
    assert array is not None
    assert (array.kind, array.name) == (Kind.ARRAY, "_pair")
    pair = array.inner
    assert pair is not None
    assert [name for name, _ in pair.fields] == ["First One", "moods", "span"]
    kinds = [field.kind for _, field in pair.fields]
    assert kinds == [Kind.BASE, Kind.ARRAY, Kind.RANGE]
    moods, span = pair.fields[1][1], pair.fields[2][1]
    assert moods.inner is not None
    assert moods.inner.kind == Kind.ENUM
    assert span.inner == PgType(23, "int4")


@pytest.mark.parametrize(
    ("written", "kind", "inner"),
    [
        ("nummultirange", Kind.MULTIRANGE, "numeric"),
        ("tstzrange", Kind.RANGE, "timestamptz"),
        ("int2vector", Kind.BASE, None),
        ("oidvector", Kind.BASE, None),
        ("point", Kind.BASE, None),
        ("name", Kind.BASE, None),
        ("jsonb[]", Kind.ARRAY, "jsonb"),
    ],
)
def test_built_in_types_have_their_kind(
    place: Place, written: str, kind: Kind, inner: str | None
) -> None:
    tree = column_type(place, written)
    assert (tree.kind, tree.inner and tree.inner.name) == (kind, inner)


def test_boxes_are_separated_by_semicolons(place: Place) -> None:
    assert column_type(place, "box[]").delimiter == ";"
    place.execute("DROP TABLE public.typed")
    assert column_type(place, "text[]").delimiter == ","


def test_patterns_find_tables_and_only_tables(place: Place) -> None:
    place.execute(
        "CREATE SCHEMA sales",
        "CREATE TABLE public.a (x int)",
        "CREATE TABLE sales.order_1 (x int)",
        "CREATE TABLE sales.order_12 (x int)",
        'CREATE TABLE sales."Order_3" (x int)',
        "CREATE VIEW sales.order_v AS SELECT 1",
        "CREATE UNLOGGED TABLE sales.order_u (x int)",
    )
    assert names(place, "sales.order_?") == ["sales.order_1"]
    assert names(place, "sales.*") == ["sales.Order_3", "sales.order_1", "sales.order_12"]
    assert names(place, "*.*")[0] == "public.a"
    assert names(place, ["public.a", "sales.order_1*"]) == [
        "public.a",
        "sales.order_1",
        "sales.order_12",
    ]
    assert names(place, "a, a, public.a") == ["public.a"]


def test_an_odd_name_is_found_in_quotes(place: Place) -> None:
    place.execute('CREATE SCHEMA "We ird"', 'CREATE TABLE "We ird"."na.m""e" (x int)')
    assert names(place, '"We ird"."na.m""e"') == ['We ird.na.m"e']


def test_a_partition_is_left_out_where_its_table_is_read(place: Place) -> None:
    place.execute(
        "CREATE TABLE public.p (a int, b int) PARTITION BY RANGE (a)",
        "CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (10)"
        " PARTITION BY LIST (b)",
        "CREATE TABLE public.p1x PARTITION OF public.p1 DEFAULT",
    )
    assert names(place, "public.*") == ["public.p"]
    assert names(place, "public.p1x") == ["public.p1x"]
    assert read_table(place.control, "p").kind == "p"


def test_a_missing_table_is_told_with_those_that_are_near(place: Place) -> None:
    place.execute("CREATE TABLE public.orders (x int)", 'CREATE TABLE public."Customers" (x int)')
    with pytest.raises(ResourceError, match=r'TABLE_MISSING.*"public"."orders"'):
        read_table(place.control, "public.order")
    with pytest.raises(ResourceError, match=r'"public"."Customers"'):
        read_table(place.control, "public.Customers")
    with pytest.raises(ResourceError, match="no table has such a name"):
        read_tables(place.control, "public.z*")
    with pytest.raises(OptionError):
        read_table(place.control, "a.b.c")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE VIEW public.t AS SELECT 1 a", "a view"),
        ("CREATE MATERIALIZED VIEW public.t AS SELECT 1 a", "a materialized view"),
        ("CREATE UNLOGGED TABLE public.t (a int)", "unlogged"),
        ("CREATE TEMPORARY TABLE t (a int)", "temporary"),
        ("CREATE SEQUENCE public.t", "a sequence"),
    ],
)
def test_what_is_not_in_the_wal_is_refused_with_the_reason(
    place: Place, statement: str, reason: str
) -> None:
    place.execute(statement)
    with pytest.raises(ResourceError, match=f"TABLE_UNFIT.*{reason}"):
        read_table(place.control, "public.t")


def test_one_table_is_one_table(place: Place) -> None:
    place.execute("CREATE TABLE public.a (x int)", "CREATE TABLE public.b (x int)")
    with pytest.raises(ResourceError, match="means 2 tables"):
        read_table(place.control, "public.*")


def test_a_table_of_1600_columns_is_read(place: Place) -> None:
    columns = ", ".join(f"c{number} int" for number in range(1600))
    place.execute(f"CREATE TABLE public.wide ({columns})")
    assert len(read_table(place.control, "wide").columns) == 1600


def test_servers_are_told_apart(
    postgres: PostgresServer, postgres_16: PostgresServer, place: Place
) -> None:
    here = server_facts(place.control)
    with postgres_16.connect() as connection:
        there = server_facts(connection)
    assert here.system_identifier != there.system_identifier
    assert (here.version // 10_000, there.version // 10_000) == (18, 16)


def test_the_facts_of_a_server_are_those_of_now(place: Place) -> None:
    before = server_facts(place.control)
    assert (before.wal_level, before.is_in_recovery, before.timeline) == ("logical", False, 1)
    place.execute(
        "CREATE TABLE public.t (a int)",
        "SELECT pg_create_logical_replication_slot('facts_slot', 'pgoutput')",
    )
    after = server_facts(place.control)
    assert after.flush_lsn > before.flush_lsn
    assert current_lsn(place.control) >= after.flush_lsn
    assert after.free_replication_slots == before.free_replication_slots - 1


def facts(**changed: object) -> ServerFacts:
    known = {
        "version": 180_000,
        "system_identifier": "1",
        "timeline": 1,
        "wal_level": "logical",
        "max_replication_slots": 10,
        "free_replication_slots": 1,
        "is_in_recovery": False,
        "flush_lsn": 1,
    }
    return ServerFacts(**{**known, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"version": 130_010}, "SERVER_TOO_OLD"),
        ({"wal_level": "replica"}, "WAL_LEVEL"),
        ({"free_replication_slots": 0}, "SLOTS_FULL"),
        ({"is_in_recovery": True, "version": 150_000}, "STANDBY"),
    ],
)
def test_a_server_that_cannot_stream_is_told(changed: dict[str, object], code: str) -> None:
    check_can_stream(facts(), needs_new_slot=True)
    with pytest.raises(ResourceError) as caught:
        check_can_stream(facts(**changed), needs_new_slot=True)
    assert caught.value.code == code


def test_no_free_slot_is_needed_where_one_is_there_and_19_decodes_on_demand() -> None:
    check_can_stream(facts(free_replication_slots=0), needs_new_slot=False)
    check_can_stream(facts(version=190_000, wal_level="replica"), needs_new_slot=True)
    check_can_stream(facts(is_in_recovery=True, version=160_000), needs_new_slot=True)
