"""The source's measurements, for Spark's progress and for Prometheus; runs on the driver."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock._core.metrics import Metric, render
from penstock.postgres.lsn import format_lsn
from penstock.postgres.source.offsets import WAL, CdcOffset

if TYPE_CHECKING:
    from penstock.postgres.slot import SlotState

# Samples of the WAL's end; one more than a few seconds after the last is not needed.
_SAMPLE_SECONDS = 1.0
_MOST_SAMPLES = 7200

# name in the progress -> what Prometheus gets of it; positions and names are for people.
METRICS: dict[str, Metric] = {
    "walLagBytes": ("wal_lag_bytes", "gauge", "WAL that is not committed by the query yet."),
    "walLagSeconds": ("wal_lag_seconds", "gauge", "About how old the oldest of it is."),
    "unplannedWalBytes": ("unplanned_wal_bytes", "gauge", "WAL that is in no batch yet."),
    "heldWalBytes": ("held_wal_bytes", "gauge", "WAL that the server keeps because of the slot."),
    "heldWalSeconds": ("held_wal_seconds", "gauge", "About how old the oldest of it is."),
    "safeWalBytes": (
        "safe_wal_bytes",
        "gauge",
        "WAL that may still be written before the slot is lost.",
    ),
    "slotLost": ("slot_lost", "gauge", "1 if the slot can not be used any more."),
    "spilledTransactions": (
        "spilled_transactions_total",
        "counter",
        "Transactions that outgrew the server's memory for decoding.",
    ),
    "spilledBytes": ("spilled_bytes_total", "counter", "The same in bytes."),
}


class WalClock:
    """Remembers when the WAL ended where, so that a position has an age."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MOST_SAMPLES)

    def note(self, end: int) -> None:
        """The WAL ends here now."""
        now = self._now()
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, end))

    def age(self, position: int, end: int) -> float:
        """Give how long ago the WAL was written that comes after a position, at most."""
        if position >= end:
            return 0.0
        later = (second for second, at in self._samples if at > position)
        return round(max(0.0, self._now() - next(later, self._now())), 3)


def measure(
    state: SlotState | None, end: int, planned: CdcOffset | None, clock: WalClock
) -> dict[str, Any]:
    """Give the measurements under their names in the progress."""
    clock.note(end)
    known: dict[str, Any] = {"walEnd": format_lsn(end)}
    if planned is not None and planned.phase == WAL:
        known["planned"] = format_lsn(planned.lsn)
        known["unplannedWalBytes"] = max(0, end - planned.lsn)
    if state is None:
        return known
    confirmed, restart = state.confirmed_flush_lsn or 0, state.restart_lsn or 0
    return {
        **known,
        "slot": state.name,
        "slotStatus": state.wal_status,
        "slotLost": int(state.wal_status == "lost" or bool(state.invalidation_reason)),
        "slotActivePid": state.active_pid,
        "confirmed": format_lsn(confirmed),
        "walLagBytes": max(0, end - confirmed),
        "walLagSeconds": clock.age(confirmed, end),
        "heldWalBytes": state.wal_bytes,
        "heldWalSeconds": clock.age(restart, end),
        "safeWalBytes": state.safe_wal_size,
        "spilledTransactions": state.spill_txns,
        "spilledBytes": state.spill_bytes,
    }


def render_metrics(values: dict[str, Any], slot: str, table: str) -> str:
    """Write the measurements in Prometheus' text format."""
    return render("penstock_postgres", METRICS, values, slot=slot, table=table)
