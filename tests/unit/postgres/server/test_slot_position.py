"""Where a slot stands: each way in which a query cannot go on from it, told."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from penstock.errors import DataLossError, PenstockError, ResourceError
from penstock.postgres.server import ServerFacts, current_lsn, server_facts
from penstock.postgres.slot import (
    SlotState,
    advance_slot,
    create_slot,
    drop_slot,
    has_changes,
    inspect_slot,
)
from penstock.postgres.slot_position import check_position, check_usable
from penstock.testing.postgres import PostgresServer, postgres_server
from tests.unit.postgres.server.conftest import Place, make_place, state_of


def test_a_restart_of_the_server_ends_the_snapshot_and_keeps_the_slot() -> None:
    with postgres_server() as server, contextlib.ExitStack() as stack:
        place = make_place(server, stack)
        slot = create_slot(place.settings, "s_restart", place.version)
        facts = server_facts(place.control)
        assert slot.is_open
        server.restart()
        assert not slot.is_open
        with server.connect(place.database) as control:
            state = inspect_slot(control, "s_restart", place.version)
            check_position(
                state,
                server_facts(control),
                name="s_restart",
                database=place.database,
                lsn=slot.consistent_lsn,
                system_identifier=facts.system_identifier,
            )
        slot.close()


@pytest.mark.parametrize("version", [16, 18])
def test_a_slot_that_held_too_much_wal_is_lost_and_told(version: int) -> None:
    limits = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with postgres_server(limits, version=version) as server, contextlib.ExitStack() as stack:
        place = make_place(server, stack)
        slot = create_slot(place.settings, "s_lost", place.version, exports=False)
        for _ in range(4):
            place.execute(
                "SELECT pg_logical_emit_message(false, 'x', repeat('y', 100000))", "CHECKPOINT"
            )
            place.control.execute("SELECT pg_switch_wal()")
        place.execute("CHECKPOINT")
        state = state_of(place, "s_lost")
        assert state.wal_status == "lost"
        with pytest.raises(DataLossError) as caught:
            check(state, server_facts(place.control), lsn=slot.consistent_lsn, place=place)
        assert caught.value.code == ("SLOT_INVALIDATED" if version >= 17 else "SLOT_LOST")
        assert "max_slot_wal_keep_size" in str(caught.value)
        with pytest.raises(PenstockError) as refused:
            has_changes(place.control, "s_lost", "pub", current_lsn(place.control), place.version)
        assert refused.value.code == "STATE_UNFIT"


def check(state: SlotState | None, facts: ServerFacts, *, lsn: int, place: Place) -> SlotState:
    return check_position(state, facts, name="s", database=place.database, lsn=lsn)


def test_a_slot_that_has_all_is_taken(place: Place) -> None:
    slot = create_slot(place.settings, "s_fine", place.version, exports=False)
    state, facts = state_of(place, "s_fine"), server_facts(place.control)
    assert check(state, facts, lsn=slot.consistent_lsn, place=place) == state
    # After a crash of the server its slot may stand before what the query has read.
    assert check(state, facts, lsn=facts.flush_lsn, place=place) == state


def test_a_slot_that_was_moved_or_recreated_is_told(place: Place) -> None:
    slot = create_slot(place.settings, "s_moved", place.version, exports=False)
    place.execute("CREATE TABLE public.t AS SELECT 1")
    advance_slot(place.control, "s_moved", current_lsn(place.control))
    facts = server_facts(place.control)
    with pytest.raises(DataLossError, match=r"SLOT_MOVED.*something else advanced it"):
        check(state_of(place, "s_moved"), facts, lsn=slot.consistent_lsn, place=place)
    drop_slot(place.control, "s_moved")
    with pytest.raises(DataLossError, match="SLOT_MISSING"):
        check(
            inspect_slot(place.control, "s_moved", place.version),
            facts,
            lsn=slot.consistent_lsn,
            place=place,
        )
    create_slot(place.settings, "s_moved", place.version, exports=False)
    with pytest.raises(DataLossError, match=r"SLOT_MOVED.*recreated"):
        check(state_of(place, "s_moved"), facts, lsn=slot.consistent_lsn, place=place)


def test_a_checkpoint_of_another_server_is_told(place: Place, postgres_16: PostgresServer) -> None:
    slot = create_slot(place.settings, "s_other", place.version, exports=False)
    with postgres_16.connect() as connection:
        other = server_facts(connection).system_identifier
    with pytest.raises(DataLossError, match=f"SLOT_SERVER_CHANGED.*{other}"):
        check_position(
            state_of(place, "s_other"),
            server_facts(place.control),
            name="s_other",
            database=place.database,
            lsn=slot.consistent_lsn,
            system_identifier=other,
        )


def test_a_server_that_is_behind_the_checkpoint_is_told(place: Place) -> None:
    create_slot(place.settings, "s_behind", place.version, exports=False)
    facts = server_facts(place.control)
    with pytest.raises(DataLossError, match="SLOT_SERVER_BEHIND"):
        check(state_of(place, "s_behind"), facts, lsn=facts.flush_lsn + 1, place=place)


@pytest.mark.parametrize(
    ("changed", "error", "code"),
    [
        ({"slot_type": "physical", "plugin": None}, ResourceError, "SLOT_UNFIT"),
        ({"plugin": "test_decoding"}, ResourceError, "SLOT_UNFIT"),
        ({"database": "elsewhere"}, ResourceError, "SLOT_UNFIT"),
        ({"synced": True}, ResourceError, "SLOT_UNFIT"),
        ({"invalidation_reason": "idle_timeout"}, DataLossError, "SLOT_INVALIDATED"),
        ({"invalidation_reason": "a new one"}, DataLossError, "SLOT_INVALIDATED"),
        ({"wal_status": "lost"}, DataLossError, "SLOT_LOST"),
        ({"restart_lsn": None}, DataLossError, "SLOT_LOST"),
        ({"conflicting": True}, DataLossError, "SLOT_INVALIDATED"),
    ],
)
def test_each_way_a_slot_can_be_unusable_is_told(
    place: Place, changed: dict[str, Any], error: type[PenstockError], code: str
) -> None:
    create_slot(place.settings, "s_unfit", place.version, exports=False)
    good = state_of(place, "s_unfit")
    check_usable(good, place.database)
    bad = dataclasses.replace(good, **changed)
    with pytest.raises(error) as caught:
        check_usable(bad, place.database)
    assert caught.value.code == code
    with pytest.raises(error):
        check(bad, server_facts(place.control), lsn=good.confirmed_flush_lsn or 0, place=place)
