"""The source's measurements, for Spark's progress; runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.postgres.lsn import format_lsn
from penstock.postgres.source.offsets import WAL, CdcOffset

if TYPE_CHECKING:
    from penstock.postgres.source.server import StreamServer


def measure(server: StreamServer, planned: CdcOffset | None) -> dict[str, Any]:
    """Give the measurements under their names in the progress."""
    state = server.slot()
    current = server.current_lsn()
    known: dict[str, Any] = {"walEnd": format_lsn(current)}
    if planned is not None and planned.phase == WAL:
        known["planned"] = format_lsn(planned.lsn)
        known["unplannedWalBytes"] = max(0, current - planned.lsn)
    if state is None:
        return known
    confirmed = state.confirmed_flush_lsn or 0
    return {
        **known,
        "slot": state.name,
        "slotStatus": state.wal_status,
        "slotActivePid": state.active_pid,
        "confirmed": format_lsn(confirmed),
        # What the sink does not have yet, and what the server keeps because of the slot.
        "walLagBytes": max(0, current - confirmed),
        "heldWalBytes": state.wal_bytes,
        "safeWalBytes": state.safe_wal_size,
        "spilledTransactions": state.spill_txns,
        "spilledBytes": state.spill_bytes,
    }
