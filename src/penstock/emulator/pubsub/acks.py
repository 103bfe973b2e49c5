"""Acknowledge and ModifyAckDeadline, unary or inside a stream; runs in the event loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.emulator.pubsub import wire
from penstock.emulator.pubsub.resources import Subscription
from penstock.emulator.pubsub.rpc import RpcError, invalid, invalid_ack_ids
from penstock.emulator.pubsub.store import Store

MAX_REQUEST_BYTES = 512 * 1024
_INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"


@dataclass(frozen=True)
class AckOutcome:
    """What became of each ack id of a request, on an exactly-once subscription."""

    ack_ids: pa.StringArray
    is_invalid: npt.NDArray[np.bool_]
    # The injected reason, or empty.
    failure: str = ""

    def error(self) -> RpcError | None:
        """Give the error of a unary call; None when every id was good."""
        if self.failure:
            return invalid_ack_ids(dict.fromkeys(self.ack_ids.to_pylist(), self.failure))
        if not self.is_invalid.any():
            return None
        failed = self.ack_ids.filter(pa.array(self.is_invalid)).to_pylist()
        return invalid_ack_ids(dict.fromkeys(failed, _INVALID))

    def confirmation(self, message_name: str) -> bytes:
        """Encode the confirmation that a stream gets."""
        empty = pa.array([], pa.string())
        good = self.ack_ids.filter(pa.array(~self.is_invalid))
        bad = self.ack_ids.filter(pa.array(self.is_invalid))
        transient = empty
        if self.failure.startswith("TRANSIENT"):
            good, bad, transient = empty, empty, self.ack_ids
        elif self.failure:
            good, bad = empty, self.ack_ids
        fields = {"ack_ids": good, "invalid_ack_ids": bad, "temporary_failed_ack_ids": transient}
        return wire.encode_lists(message_name, fields)


def check_size(payload: bytes) -> None:
    """Refuse an acknowledgement request over the service's limit."""
    if len(payload) > MAX_REQUEST_BYTES:
        raise RpcError(
            invalid("", "").code,
            f"Request payload size exceeds the limit: {MAX_REQUEST_BYTES} bytes.",
        )


def acknowledge(
    store: Store, subscription: Subscription, ack_ids: pa.StringArray, method: str
) -> AckOutcome:
    """Acknowledge; on a subscription without exactly-once delivery expired ids count too."""
    parsed = _parse(subscription, ack_ids)
    backlog = subscription.backlog
    if not subscription.is_exactly_once:
        good = parsed.known
    else:
        if store.faults and (fault := store.faults.draw("fail_ack_ids", method)):
            return AckOutcome(ack_ids, np.zeros(len(ack_ids), np.bool_), fault.code)
        # An ack that is repeated because its answer was lost is a success, not a failure.
        good = parsed.known & (
            backlog.current(parsed.positions, parsed.attempts) | backlog.is_done(parsed.positions)
        )
    if not (store.faults and store.faults.draw("lose_ack", method)):
        backlog.ack(parsed.positions[good])
        # Flow control may have room again, and a key's next message may be due.
        subscription.notify()
    return AckOutcome(ack_ids, ~good)


def modify_deadline(
    store: Store,
    subscription: Subscription,
    ack_ids: pa.StringArray,
    seconds: npt.NDArray[np.int32],
    method: str,
) -> AckOutcome:
    """Extend leases, or end them (0 seconds: a nack); stale ids change nothing."""
    if ((seconds < 0) | (seconds > 600)).any():
        raise invalid("ack_deadline_seconds", "is not between 0 and 600")
    parsed = _parse(subscription, ack_ids)
    backlog = subscription.backlog
    if subscription.is_exactly_once and store.faults:
        fault = store.faults.draw("fail_ack_ids", method)
        if fault is not None:
            return AckOutcome(ack_ids, np.zeros(len(ack_ids), np.bool_), fault.code)
    current = parsed.known & backlog.current(parsed.positions, parsed.attempts)
    extended = current & (seconds > 0)
    now = store.clock.monotonic()
    backlog.extend_leases(parsed.positions[extended], seconds[extended].astype(np.float64) + now)
    nacked = parsed.positions[current & (seconds == 0)]
    if len(nacked):
        backlog.counters.nacked += len(nacked)
        store.give_back(subscription, nacked)
    return AckOutcome(ack_ids, ~current)


def _parse(subscription: Subscription, ack_ids: pa.StringArray) -> wire.AckIds:
    parsed = wire.decode_ack_ids(subscription.uid, ack_ids)
    if not subscription.is_exactly_once and not parsed.known.all():
        first = ack_ids[int(np.argmin(parsed.known))].as_py()
        raise invalid(
            "ack_ids",
            f"You have passed an invalid ack ID to the service (ack_id={first[:64]}).",
        )
    return parsed
