"""From rows to requests: fills, lingers, keeps each lane's order; runs in workers, pure.

A lane is what shares requests and order: one topic and, if ordered, one ordering key. Time comes
in as an argument. Never encodes, never sends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.pubsub.encoding import cut_points, topic_size
from penstock.pubsub.rows import Rows

Lane = tuple[str, str | None]


@dataclass(eq=False)
class Request:
    """Rows that travel together. Has identity: it is retried as itself."""

    lane: Lane
    messages: pa.RecordBatch = field(repr=False)
    attempts: int = 0
    # Kept from the first sending until the confirmation, for retries.
    payload: bytes | None = field(default=None, repr=False)

    @property
    def topic(self) -> str:
        """The topic to publish to."""
        return self.lane[0]

    @property
    def is_ordered(self) -> bool:
        """Whether no other request of its lane may be in flight with it."""
        return self.lane[1] is not None

    def halves(self) -> tuple[Request, Request]:
        """Split it in two that keep the order."""
        middle = self.messages.num_rows // 2
        return (
            Request(self.lane, self.messages.slice(0, middle)),
            Request(self.lane, self.messages.slice(middle)),
        )


@dataclass
class _Tail:
    """An incomplete request."""

    due: float
    parts: list[pa.RecordBatch] = field(default_factory=list)
    row_count: int = 0
    byte_count: int = 0

    def append(self, rows: Rows) -> None:
        self.parts.append(rows.messages)
        self.row_count += rows.messages.num_rows
        self.byte_count += int(rows.sizes.sum())

    def seal(self, lane: Lane) -> Request:
        is_whole = len(self.parts) == 1
        return Request(lane, self.parts[0] if is_whole else pa.concat_batches(self.parts))


class Packer:
    """Packs rows into requests by count, encoded size and time."""

    def __init__(self, max_rows: int, max_bytes: int, linger_seconds: float) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._linger_seconds = linger_seconds
        # In the order of their due times: a tail keeps its place when it is topped up.
        self._tails: dict[Lane, _Tail] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no incomplete request waits here."""
        return not self._tails

    def add(self, rows: Rows, now: float) -> list[Request]:
        """Take rows in; give the requests that are complete by now, in order."""
        lane = (rows.topic, rows.ordering_key)
        tail = self._tails.get(lane) or _Tail(now + self._linger_seconds)
        limit = self._max_bytes - topic_size(rows.topic)
        ends = cut_points(rows.sizes, self._max_rows, limit, tail.row_count, tail.byte_count)
        sealed: list[Request] = []
        start = 0
        for end in ends:
            if end > start:
                tail.append(rows.slice(start, end - start))
            start = end
            if end < len(rows.sizes) or tail.row_count >= self._max_rows:
                self._tails.pop(lane, None)
                sealed.append(tail.seal(lane))
                tail = _Tail(now + self._linger_seconds)
            else:
                self._tails.setdefault(lane, tail)
        return sealed

    def take_due(self, now: float) -> list[Request]:
        """Give the incomplete requests that have waited long enough."""
        due: list[Lane] = []
        for lane, tail in self._tails.items():
            if tail.due > now:
                break
            due.append(lane)
        return [self._tails.pop(lane).seal(lane) for lane in due]

    def next_due(self) -> float:
        """When the next incomplete request has waited long enough."""
        return next((tail.due for tail in self._tails.values()), math.inf)
