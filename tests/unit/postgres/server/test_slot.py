"""Slots: made at one moment with their snapshot, advanced, busy, lost, moved; each outcome told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psycopg
import pytest

from penstock._core.clock import ManualClock
from penstock.errors import ConnectError, DataLossError, PenstockError, ResourceError
from penstock.postgres.catalog import read_tables
from penstock.postgres.publication import ensure_publication
from penstock.postgres.server import current_lsn
from penstock.postgres.slot import (
    advance_slot,
    create_command,
    create_slot,
    drop_slot,
    has_changes,
    has_changes_query,
    inspect_slot,
    slot_query,
)
from penstock.postgres.slot_position import check_usable
from tests.unit.postgres.server.conftest import Place, state_of


@contextlib.contextmanager
def busy(place: Place, name: str) -> Iterator[int]:
    """Hold a slot as another consumer does; give its process."""
    holder = psycopg.connect(place.settings.conninfo(replication="database"), autocommit=True)
    with contextlib.closing(holder) as connection:
        command = (
            f"START_REPLICATION SLOT {name} LOGICAL 0/0"
            " (proto_version '1', publication_names 'nothing')"
        )
        connection.pgconn.send_query(command.encode())
        connection.pgconn.get_result()
        yield connection.info.backend_pid


def test_the_snapshot_is_of_the_moment_the_stream_begins(each_place: Place) -> None:
    place = each_place
    place.execute("CREATE TABLE public.t (a int PRIMARY KEY)", "INSERT INTO public.t VALUES (1)")
    ensure_publication(place.control, "pub", read_tables(place.control, "t"), place.version)
    with create_slot(place.settings, "s_begin", place.version) as slot:
        place.execute("INSERT INTO public.t VALUES (2)")
        assert slot.is_open
        with psycopg.connect(place.server.url(place.database)) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot_name}'")
            assert reader.execute("SELECT a FROM public.t").fetchall() == [(1,)]
        state = state_of(place, "s_begin")
        assert state.confirmed_flush_lsn == slot.consistent_lsn
    assert not slot.is_open
    rows = place.control.execute(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('s_begin', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'pub') WHERE get_byte(data, 0) = 73"
    ).fetchone()
    assert rows == (1,)


def test_a_slot_is_told_with_all_that_the_version_has(each_place: Place) -> None:
    assert inspect_slot(each_place.control, "s_state", each_place.version) is None
    made = create_slot(each_place.settings, "s_state", each_place.version, exports=False)
    assert (made.snapshot_name, made.is_open) == (None, False)
    state = state_of(each_place, "s_state")
    assert (state.plugin, state.slot_type) == ("pgoutput", "logical")
    assert (state.database, state.active_pid) == (each_place.database, None)
    assert (state.wal_status, state.two_phase, state.conflicting) == ("reserved", False, False)
    assert state.restart_lsn is not None
    assert state.restart_lsn <= made.consistent_lsn
    assert state.failover == (False if each_place.version >= 170_000 else None)
    assert (state.wal_bytes or 0) > 0
    check_usable(state, each_place.database)
    drop_slot(each_place.control, "s_state")
    assert inspect_slot(each_place.control, "s_state", each_place.version) is None
    drop_slot(each_place.control, "s_state")


def test_a_failover_slot_is_one(place: Place) -> None:
    create_slot(place.settings, "s_failover", place.version, failover=True).close()
    assert state_of(place, "s_failover").failover is True


def test_commands_follow_the_version() -> None:
    def written(version: int, *, exports: bool = True, failover: bool = False) -> str:
        return create_command("a_b", version, exports=exports, failover=failover)

    head = 'CREATE_REPLICATION_SLOT "a_b" LOGICAL pgoutput '
    assert written(140_000) == head + "EXPORT_SNAPSHOT"
    assert written(140_000, exports=False) == head + "NOEXPORT_SNAPSHOT"
    assert written(150_000) == head + "(SNAPSHOT 'export')"
    assert written(170_000, exports=False, failover=True) == head + "(SNAPSHOT 'nothing', FAILOVER)"
    with pytest.raises(ResourceError, match="FAILOVER_UNSUPPORTED"):
        written(160_000, failover=True)


def test_queries_ask_only_for_what_the_version_has(place: Place) -> None:
    create_slot(place.settings, "s_old", place.version, exports=False)
    for version in (140_000, 150_000, 160_000, 170_000, 180_000):
        query = slot_query(version)
        assert ("s.conflicting" in query) == (version >= 160_000)
        assert ("s.failover" in query) == (version >= 170_000)
        # An older spelling still runs on a newer server, and has the same shape.
        state = inspect_slot(place.control, "s_old", version)
        assert state is not None
        assert state.plugin == "pgoutput"
        assert (state.failover is None) == (version < 170_000)


def test_a_long_transaction_ends_the_wait_with_a_clear_error(each_place: Place) -> None:
    """Without lock_timeout the command would hang until that transaction ends."""
    place = each_place
    place.execute("CREATE TABLE public.t (a int)")
    with psycopg.connect(place.server.url(place.database)) as long:
        long.execute("INSERT INTO public.t VALUES (1)")
        with pytest.raises(ConnectError) as caught:
            create_slot(place.settings, "s_long", place.version, lock_timeout_seconds=0.2)
    assert caught.value.code == "LOCK_TIMEOUT"
    assert "pg_stat_activity" in caught.value.remedy
    assert inspect_slot(place.control, "s_long", place.version) is None
    create_slot(place.settings, "s_long", place.version, lock_timeout_seconds=5.0).close()


def test_a_prepared_transaction_ends_the_wait_too(place: Place) -> None:
    place.execute("CREATE TABLE public.t (a int)")
    place.execute("BEGIN", "INSERT INTO public.t VALUES (1)", "PREPARE TRANSACTION 'prepared'")
    try:
        with pytest.raises(ConnectError, match="pg_prepared_xacts"):
            create_slot(place.settings, "s_prepared", place.version, lock_timeout_seconds=0.2)
    finally:
        place.execute("ROLLBACK PREPARED 'prepared'")


def test_a_slot_that_is_there_is_not_made_again(place: Place) -> None:
    create_slot(place.settings, "s_twice", place.version, exports=False)
    with pytest.raises(ResourceError, match="OBJECT_EXISTS"):
        create_slot(place.settings, "s_twice", place.version)


def test_advancing_moves_the_slot_to_the_position_and_never_back(place: Place) -> None:
    slot = create_slot(place.settings, "s_advance", place.version, exports=False)
    place.execute("CREATE TABLE public.t AS SELECT 1")
    middle = current_lsn(place.control)
    place.execute("CREATE TABLE public.u AS SELECT 1")
    advance_slot(place.control, "s_advance", middle)
    assert state_of(place, "s_advance").confirmed_flush_lsn == middle
    advance_slot(place.control, "s_advance", slot.consistent_lsn)
    advance_slot(place.control, "s_advance", middle)
    assert state_of(place, "s_advance").confirmed_flush_lsn == middle


def test_advancing_stops_at_the_end_of_the_wal(place: Place) -> None:
    create_slot(place.settings, "s_end", place.version, exports=False)
    advance_slot(place.control, "s_end", current_lsn(place.control) + 2**40)
    confirmed = state_of(place, "s_end").confirmed_flush_lsn
    assert confirmed is not None
    assert confirmed <= current_lsn(place.control)


def test_advancing_a_slot_that_is_gone_is_an_error(place: Place) -> None:
    with pytest.raises(DataLossError, match="SLOT_MISSING"):
        advance_slot(place.control, "s_gone", 1)


def test_a_busy_slot_is_tried_again_and_then_told_with_its_holder(place: Place) -> None:
    create_slot(place.settings, "s_busy", place.version, exports=False)
    clock = ManualClock()
    start = clock.monotonic()
    with busy(place, "s_busy") as pid:
        with pytest.raises(ConnectError) as caught:
            advance_slot(
                place.control,
                "s_busy",
                current_lsn(place.control) + 1000,
                patience_seconds=10,
                clock=clock,
            )
        assert state_of(place, "s_busy").active_pid == pid
        with pytest.raises(ConnectError, match="OBJECT_IN_USE"):
            drop_slot(place.control, "s_busy")
    assert caught.value.code == "SLOT_BUSY"
    assert f"process {pid} ('penstock')" in caught.value.fact
    assert f"pg_terminate_backend({pid})" in caught.value.remedy
    assert 1 < clock.monotonic() - start <= 10


def test_a_slot_that_becomes_free_is_advanced(place: Place) -> None:
    create_slot(place.settings, "s_free", place.version, exports=False)
    place.execute("CREATE TABLE public.t AS SELECT 1")
    target = current_lsn(place.control)
    holder = contextlib.ExitStack()
    pid = holder.enter_context(busy(place, "s_free"))

    class Releasing(ManualClock):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            place.control.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    with holder:
        advance_slot(place.control, "s_free", target, clock=Releasing())
    assert state_of(place, "s_free").confirmed_flush_lsn == target


def test_changes_are_seen_only_where_they_are_published(each_place: Place) -> None:
    place = each_place
    place.execute("CREATE TABLE public.t (a int PRIMARY KEY)", "CREATE TABLE public.u (a int)")
    name = 'Odd "pub"'
    ensure_publication(place.control, name, read_tables(place.control, "t"), place.version)
    create_slot(place.settings, "s_changes", place.version, exports=False)

    def seen(upto: int) -> bool:
        return has_changes(place.control, "s_changes", name, upto, place.version)

    place.execute("INSERT INTO public.u SELECT generate_series(1, 100)")
    place.execute("SELECT pg_logical_emit_message(true, 'heartbeat', 'x')")
    before = current_lsn(place.control)
    assert not seen(before)
    place.execute("INSERT INTO public.t VALUES (1)")
    assert not seen(before)
    assert seen(current_lsn(place.control))
    # Looking changes nothing.
    assert seen(current_lsn(place.control))
    advance_slot(place.control, "s_changes", current_lsn(place.control))
    assert not seen(current_lsn(place.control))
    place.execute("TRUNCATE public.t")
    assert seen(current_lsn(place.control))


def test_14_looks_at_the_kinds_of_messages(place: Place) -> None:
    place.execute("CREATE TABLE public.t (a int PRIMARY KEY)")
    ensure_publication(place.control, "pub", read_tables(place.control, "t"), place.version)
    create_slot(place.settings, "s_14", place.version, exports=False)
    assert "get_byte" in has_changes_query(140_000)
    assert "get_byte" not in has_changes_query(150_000)
    assert not has_changes(place.control, "s_14", "pub", current_lsn(place.control), 140_000)
    for statement in (
        "INSERT INTO public.t VALUES (1)",
        "DELETE FROM public.t",
        "TRUNCATE public.t",
    ):
        place.execute(statement)
        upto = current_lsn(place.control)
        assert has_changes(place.control, "s_14", "pub", upto, 140_000)
        advance_slot(place.control, "s_14", upto)


def test_looking_at_a_busy_slot_is_told(place: Place) -> None:
    create_slot(place.settings, "s_looked", place.version, exports=False)
    with busy(place, "s_looked"), pytest.raises(ConnectError, match="OBJECT_IN_USE"):
        has_changes(place.control, "s_looked", "pub", current_lsn(place.control), place.version)


def test_two_creators_of_one_slot_leave_one(place: Place) -> None:
    outcomes: list[str] = []

    def make() -> None:
        try:
            create_slot(place.settings, "s_race", place.version, exports=False)
            outcomes.append("made")
        except PenstockError as exc:
            outcomes.append(exc.code)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["OBJECT_EXISTS", "OBJECT_EXISTS", "made"]
