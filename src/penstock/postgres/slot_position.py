"""Whether a slot still has what a query has to read next; runs on the driver, pure.

PostgreSQL 15 and later silently begin at the slot's own position when asked for an earlier one.
So the positions are compared here, before anything is read: a gap is an error, never silence.
"""

from __future__ import annotations

from penstock.errors import DataLossError, PenstockError, ResourceError
from penstock.postgres.lsn import format_lsn
from penstock.postgres.server import ServerFacts
from penstock.postgres.slot import PLUGIN, SlotState

_AGAIN = (
    "Changes since then are gone from the WAL: take a new snapshot with a new checkpointLocation, "
    "or set onSlotLost=resnapshot"
)
# invalidation_reason of 17 and later, in words.
_REASONS = {
    "wal_removed": "its WAL was removed, because it held more than max_slot_wal_keep_size",
    "rows_removed": "rows that it needed were removed by vacuum on the primary",
    "wal_level_insufficient": "wal_level was lowered",
    "idle_timeout": "it was idle for longer than idle_replication_slot_timeout",
}


def check_position(
    state: SlotState | None,
    facts: ServerFacts,
    *,
    name: str,
    database: str,
    lsn: int,
    system_identifier: str | None = None,
) -> SlotState:
    """Check that a query can go on from a position.

    Args:
        state: the slot as it is now; None where it does not exist.
        facts: the server as it is now.
        name: of the slot.
        database: that the query reads.
        lsn: from which on it has to read.
        system_identifier: of the server that the position is from.

    Raises:
        DataLossError: what it has to read next is not there.
        ResourceError: the slot is one that the query cannot use.
    """
    problem = (
        _other_server(facts, name, system_identifier)
        or _missing(state, name, lsn)
        or (state and (_unfit(state, database) or _invalid(state) or _moved(state, lsn)))
        or _behind(facts, name, lsn)
    )
    if problem:
        raise problem
    assert state is not None  # noqa: S101 - that is the second problem
    return state


def check_usable(state: SlotState, database: str) -> None:
    """Check that a slot that is there can serve a query at all, wherever it stands.

    Raises:
        DataLossError: it was invalidated.
        ResourceError: it is of another kind, plugin or database.
    """
    problem = _unfit(state, database) or _invalid(state)
    if problem:
        raise problem


def _other_server(
    facts: ServerFacts, name: str, system_identifier: str | None
) -> PenstockError | None:
    if system_identifier is None or system_identifier == facts.system_identifier:
        return None
    return DataLossError(
        "SLOT_SERVER_CHANGED",
        f"Slot '{name}'",
        f"the checkpoint is of the server with system identifier {system_identifier}, and this "
        f"one has {facts.system_identifier}: positions in its WAL mean nothing here",
        "Correct option 'url'; for a new server take a new snapshot with a new "
        "checkpointLocation, or set onSlotLost=resnapshot",
    )


def _missing(state: SlotState | None, name: str, lsn: int) -> PenstockError | None:
    if state is not None:
        return None
    return DataLossError(
        "SLOT_MISSING",
        f"Slot '{name}'",
        f"does not exist, and the checkpoint goes on from {format_lsn(lsn)}: it was dropped, or "
        "lost by a failover",
        _AGAIN,
    )


def _unfit(state: SlotState, database: str) -> PenstockError | None:
    fact = None
    if state.slot_type != "logical":
        fact = f"is a {state.slot_type} slot"
    elif state.plugin != PLUGIN:
        fact = f"has the plugin '{state.plugin}', not '{PLUGIN}'"
    elif state.database != database:
        fact = f"is of database '{state.database}', not '{database}'"
    elif state.synced:
        fact = "is a copy that this standby keeps for a failover"
    if fact is None:
        return None
    return ResourceError(
        "SLOT_UNFIT", f"Slot '{state.name}'", fact, "Set option 'slot' to another name"
    )


def _invalid(state: SlotState) -> PenstockError | None:
    reason = state.invalidation_reason
    if reason is not None:
        return DataLossError(
            "SLOT_INVALIDATED",
            f"Slot '{state.name}'",
            f"was invalidated by the server: {_REASONS.get(reason, reason)}",
            f"Raise that limit, drop the slot. {_AGAIN}",
        )
    if state.wal_status == "lost" or state.restart_lsn is None:
        return DataLossError(
            "SLOT_LOST",
            f"Slot '{state.name}'",
            f"the server has removed WAL that it needs: wal_status is '{state.wal_status}'",
            f"Raise max_slot_wal_keep_size, drop the slot. {_AGAIN}",
        )
    if state.conflicting:
        return DataLossError(
            "SLOT_INVALIDATED",
            f"Slot '{state.name}'",
            "conflicts with recovery on this standby, which removed rows that it needs",
            f"Set hot_standby_feedback = on, drop the slot. {_AGAIN}",
        )
    return None


def _moved(state: SlotState, lsn: int) -> PenstockError | None:
    confirmed = state.confirmed_flush_lsn
    if confirmed is None or confirmed <= lsn:
        return None
    return DataLossError(
        "SLOT_MOVED",
        f"Slot '{state.name}'",
        f"is at {format_lsn(confirmed)}, after {format_lsn(lsn)}, from where the checkpoint goes "
        "on: it was recreated, or something else advanced it",
        f"Let only one query use it. {_AGAIN}",
    )


def _behind(facts: ServerFacts, name: str, lsn: int) -> PenstockError | None:
    if lsn <= facts.flush_lsn:
        return None
    return DataLossError(
        "SLOT_SERVER_BEHIND",
        f"Slot '{name}'",
        f"the server's WAL ends at {format_lsn(facts.flush_lsn)}, before {format_lsn(lsn)}, to "
        "where the checkpoint has read: the server was restored, or a standby took over that had "
        "not received all",
        "The sink has rows that the server does not have any more: take a new snapshot with a new "
        "checkpointLocation, or set onSlotLost=resnapshot",
    )
