"""Looks at a subscription's messages and hands every one back; runs in a worker.

Leases with Pull, so that nothing is missed, and returns each lease (a deadline of zero) before
any row leaves: whatever the reader of the rows does then, nothing is consumed. Never acks.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import pyarrow as pa

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.pubsub.client import MODIFY_ACK_DEADLINE, PULL, Client
from penstock.pubsub.encoding import Received, byte_lengths, cut_points, decode_pull, encode
from penstock.pubsub.errors import CallFailed, Resource, service_error
from penstock.pubsub.options import PubSubReadOptions
from penstock.retry import Backoff, is_transient

_LOG = logging.getLogger(__name__)

# The service gives at most this many messages to one call.
_PULL_ROWS = 1000
# After the first messages, silence of this length means that there are no more.
QUIET_SECONDS = 2.0
# A lease outlives the collecting by this much, for handing back.
_LEASE_MARGIN_SECONDS = 20.0
_LONGEST_LEASE_SECONDS = 600
# The service refuses requests over 524,288 bytes; ids of it are below 200 bytes.
_ACK_REQUEST_BYTES = 500_000
_ACK_REQUEST_IDS = 2500
_CALL_SECONDS = 10.0
_CALL_ATTEMPTS = 5


class Peek:
    """One look into a subscription."""

    def __init__(
        self,
        client: Client,
        options: PubSubReadOptions,
        ack_deadline_seconds: int,
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._ack_deadline_seconds = ack_deadline_seconds
        self._clock = clock
        self._backoff = backoff or Backoff(longest_seconds=2.0)
        self._held: list[Received] = []
        self._row_count = 0
        self._byte_count = 0

    def collect(self) -> list[pa.RecordBatch]:
        """Lease up to maxMessages, hand them back, give their rows; each message once.

        Raises:
            PenstockError: the service refused, or could not be reached at all.
        """
        end = self._clock.monotonic() + self._options.max_fetch_period
        try:
            self._lease_until(end)
        finally:
            for received in self._held:
                self._set_deadline(received.ack_ids, 0)
        return _distinct([received.rows for received in self._held])

    def _lease_until(self, end: float) -> None:
        failure: CallFailed | None = None
        attempt = 0
        while (left := end - self._clock.monotonic()) > 0:
            wanted = self._options.max_messages - self._row_count
            if wanted <= 0 or self._byte_count >= self._options.max_bytes:
                return
            try:
                received, failure = self._pull(wanted, left), None
            except CallFailed as exc:
                if exc.code != "DEADLINE_EXCEEDED" and not is_transient(exc.code):
                    raise self._error(exc) from exc
                received, failure = None, exc
            if received is not None and len(received.ack_ids):
                self._take(received, end)
                attempt = 0
                continue
            # Nothing came: by silence, by an empty answer, or by a failure that passes.
            is_silence = failure is None or failure.code == "DEADLINE_EXCEEDED"
            if self._held and is_silence:
                return
            self._clock.wait(min(max(0.0, left), self._backoff.seconds(attempt)))
            attempt += 1
        if failure is not None and failure.code != "DEADLINE_EXCEEDED" and not self._held:
            raise self._error(failure) from failure

    def _pull(self, wanted: int, left: float) -> Received:
        request = pa.record_batch(
            {
                "subscription": [self._options.subscription],
                "max_messages": pa.array([min(wanted, _PULL_ROWS)], pa.int32()),
            }
        )
        seconds = min(left, QUIET_SECONDS) if self._held else left
        payload = encode("PullRequest", request)
        return decode_pull(self._client.call(PULL, self._options.subscription, payload, seconds))

    def _take(self, received: Received, end: float) -> None:
        self._held.append(received)
        self._row_count += len(received.ack_ids)
        self._byte_count += received.rows.nbytes
        # One lease that lasts to the end: no message comes twice into one look.
        needed = end - self._clock.monotonic() + _LEASE_MARGIN_SECONDS
        if needed > self._ack_deadline_seconds:
            self._set_deadline(received.ack_ids, min(math.ceil(needed), _LONGEST_LEASE_SECONDS))

    def _set_deadline(self, ack_ids: pa.StringArray, seconds: int) -> None:
        """Prolong leases, or return them with 0. A failure is no loss: leases end by themselves."""
        # Each id has a tag and a length of up to three bytes before it.
        sizes = byte_lengths(ack_ids) + 4
        start = 0
        for end in cut_points(sizes, _ACK_REQUEST_IDS, _ACK_REQUEST_BYTES):
            offsets = pa.array([0, end - start], pa.int32())
            ids = pa.ListArray.from_arrays(offsets, ack_ids.slice(start, end - start))
            request = pa.record_batch(
                {
                    "subscription": [self._options.subscription],
                    "ack_deadline_seconds": pa.array([seconds], pa.int32()),
                    "ack_ids": ids,
                }
            )
            self._modify(encode("ModifyAckDeadlineRequest", request), end - start)
            start = end

    def _modify(self, payload: bytes, count: int) -> None:
        name = self._options.subscription
        for attempt in range(_CALL_ATTEMPTS):
            try:
                self._client.call(MODIFY_ACK_DEADLINE, name, payload, _CALL_SECONDS)
            except CallFailed as failure:
                if is_transient(failure.code) and attempt < _CALL_ATTEMPTS - 1:
                    self._clock.wait(self._backoff.seconds(attempt))
                    continue
                _LOG.warning(
                    "%s: the leases of %d messages were not changed (%s); they end by themselves",
                    name,
                    count,
                    failure.code,
                )
            return

    def _error(self, failure: CallFailed) -> PenstockError:
        return service_error(failure, Resource.subscription(self._options.subscription))


def _distinct(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Keep the first of the rows that have the same message id."""
    if not batches:
        return []
    ids = pa.chunked_array([batch.column("message_id") for batch in batches])
    codes = ids.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    _, firsts = np.unique(codes, return_index=True)
    if len(firsts) == len(codes):
        return batches
    is_first = np.zeros(len(codes), np.bool_)
    is_first[firsts] = True
    is_first |= codes < 0
    kept: list[pa.RecordBatch] = []
    start = 0
    for batch in batches:
        kept.append(batch.filter(pa.array(is_first[start : start + batch.num_rows])))
        start += batch.num_rows
    return kept
