"""Topics, subscriptions and snapshots as the emulator holds them; runs in its event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.emulator.pubsub.backlog import Backlog
from penstock.emulator.pubsub.columns import Positions
from penstock.emulator.pubsub.log import TopicLog
from penstock.emulator.pubsub.wire import decode_heads

if TYPE_CHECKING:
    from penstock.emulator.pubsub.filter import MessageFilter


@dataclass
class Topic:
    """A topic: its settings (a google.pubsub.v1.Topic) and its messages."""

    settings: Any
    log: TopicLog = field(default_factory=TopicLog)
    published: int = 0
    published_bytes: int = 0

    @property
    def name(self) -> str:
        """The full resource name."""
        return str(self.settings.name)


@dataclass
class Subscription:
    """A subscription: its settings (a google.pubsub.v1.Subscription) and its backlog.

    `log` stays when the topic is deleted: what was published remains deliverable.
    """

    settings: Any
    log: TopicLog
    backlog: Backlog
    uid: int
    matcher: MessageFilter
    last_used: float
    is_deleted: bool = False
    waiters: list[asyncio.Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The full resource name."""
        return str(self.settings.name)

    @property
    def is_exactly_once(self) -> bool:
        """Whether stale ack ids are refused and acknowledgements are confirmed."""
        return bool(self.settings.enable_exactly_once_delivery)

    def notify(self) -> None:
        """Wake whoever waits for messages; each time another one is first, so that all get some."""
        if self.waiters:
            self.waiters.append(self.waiters.pop(0))
        for waiter in self.waiters:
            waiter.set()

    def match_stored(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Apply the filter to messages that are stored already."""
        if not len(positions) or not self.matcher.text:
            return np.ones(len(positions), np.bool_)
        parts = self.log.parts(positions)
        return np.concatenate(
            [self.matcher.matches(decode_heads(part).field("attributes")) for part in parts]
        )

    def match_published(self, attributes: pa.MapArray) -> npt.NDArray[np.bool_]:
        """Apply the filter to messages that are being published."""
        return self.matcher.matches(attributes)


@dataclass
class Snapshot:
    """What a subscription had not acknowledged at one moment, and all that came later."""

    settings: Any
    log: TopicLog
    low: int
    unacked: npt.NDArray[np.bool_]

    @property
    def end(self) -> int:
        """The position of the first message published after the snapshot."""
        return self.low + len(self.unacked)

    def needs(self, low: int, high: int) -> bool:
        """Tell whether a seek to this snapshot would deliver any message of [low, high)."""
        held = self.unacked[max(0, low - self.low) : max(0, high - self.low)]
        return high > self.end or bool(held.any())
