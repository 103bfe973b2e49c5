"""Acknowledge and ModifyAckDeadline, unary or inside a stream; runs in the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.emulator.pubsub import wire
from penstock.emulator.pubsub.resources import Subscription
from penstock.emulator.pubsub.rpc import Code, RpcError, invalid, invalid_ack_ids
from penstock.emulator.pubsub.store import Store

MAX_REQUEST_BYTES = 512 * 1024
INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"
UNORDERED = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"


@dataclass(frozen=True)
class AckOutcome:
    """What became of each ack id of a request, on an exactly-once subscription."""

    ack_ids: pa.StringArray
    # Reason -> which ids failed for it; no id is in two of them.
    failures: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    def error(self) -> RpcError | None:
        """Give the error of a unary call; None when every id was good."""
        failed = {
            ack_id: reason
            for reason, mask in self.failures.items()
            for ack_id in self.ack_ids.filter(pa.array(mask)).to_pylist()
        }
        return invalid_ack_ids(failed) if failed else None

    def confirmation(self, message_name: str) -> bytes:
        """Encode the confirmation that a stream gets."""
        # Field -> the ids in it, and first of all that no id is.
        sorted_out = {
            name: np.zeros(len(self.ack_ids), np.bool_)
            for name in ("invalid_ack_ids", "unordered_ack_ids", "temporary_failed_ack_ids")
        }
        good = np.ones(len(self.ack_ids), np.bool_)
        for reason, mask in self.failures.items():
            name = "invalid_ack_ids"
            if reason.startswith("TRANSIENT"):
                name = "unordered_ack_ids" if reason == UNORDERED else "temporary_failed_ack_ids"
            sorted_out[name] |= mask
            good &= ~mask
        fields = {name: self.ack_ids.filter(pa.array(mask)) for name, mask in sorted_out.items()}
        fields["ack_ids"] = self.ack_ids.filter(pa.array(good))
        return wire.encode_lists(message_name, fields)


def check_size(payload: bytes) -> None:
    """Refuse an acknowledgement request over the service's limit."""
    if len(payload) > MAX_REQUEST_BYTES:
        raise RpcError(
            Code.INVALID_ARGUMENT,
            f"Request payload size exceeds the limit: {MAX_REQUEST_BYTES} bytes.",
        )


def acknowledge(
    store: Store, subscription: Subscription, ack_ids: pa.StringArray, method: str
) -> AckOutcome:
    """Acknowledge; on a subscription without exactly-once delivery expired ids count too."""
    parsed = _parse(subscription, ack_ids)
    good = parsed.known
    failures: dict[str, npt.NDArray[np.bool_]] = {}
    if subscription.is_exactly_once:
        if injected := _injected(store, ack_ids, method):
            return injected
        good, failures = _judge(store, subscription, parsed)
    if not (store.faults and store.faults.draw("lose_ack", method)):
        subscription.backlog.ack(parsed.positions[good])
        # Flow control may have room again, and a key's next message may be due.
        subscription.notify()
    return AckOutcome(ack_ids, failures)


def _judge(
    store: Store, subscription: Subscription, parsed: wire.AckIds
) -> tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[np.bool_]]]:
    """Decide on each id of an exactly-once subscription: which are good, and why others fail."""
    backlog = subscription.backlog
    current = backlog.current(parsed.positions, parsed.tokens, store.clock.monotonic())
    current &= parsed.known
    # An ack that is repeated because its answer was lost is a success, not a failure.
    again = parsed.known & backlog.was_acked(parsed.positions, parsed.tokens)
    failures = {INVALID: ~(current | again)}
    if backlog.is_ordered:
        unordered = np.zeros(len(current), np.bool_)
        unordered[current] = backlog.out_of_order(parsed.positions[current])
        failures[UNORDERED] = unordered
        current &= ~unordered
    return current, failures


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
    if subscription.is_exactly_once and (injected := _injected(store, ack_ids, method)):
        return injected
    backlog = subscription.backlog
    now = store.clock.monotonic()
    current = parsed.known & backlog.current(parsed.positions, parsed.tokens, now)
    extended = current & (seconds > 0)
    backlog.extend_leases(parsed.positions[extended], seconds[extended].astype(np.float64) + now)
    nacked = np.unique(parsed.positions[current & (seconds == 0)])
    if len(nacked):
        backlog.counters.nacked += len(nacked)
        store.give_back(subscription, nacked)
    return AckOutcome(ack_ids, {INVALID: ~current})


def _injected(store: Store, ack_ids: pa.StringArray, method: str) -> AckOutcome | None:
    fault = store.faults.draw("fail_ack_ids", method) if store.faults else None
    if fault is None:
        return None
    return AckOutcome(ack_ids, {fault.code: np.ones(len(ack_ids), np.bool_)})


def _parse(subscription: Subscription, ack_ids: pa.StringArray) -> wire.AckIds:
    parsed = wire.decode_ack_ids(subscription.uid, ack_ids)
    if not subscription.is_exactly_once and not parsed.known.all():
        first = ack_ids[int(np.argmin(parsed.known))].as_py()
        raise invalid(
            "ack_ids",
            f"You have passed an invalid ack ID to the service (ack_id={first[:64]}).",
        )
    return parsed
