"""Which agent has delivered what to which task; runs in the coordinator's event loop, pure.

Knows deliveries, never ack ids or messages, so its size is bounded by the batches in flight. The
rule that loses nothing: a delivery is acknowledged only if its batch is committed AND it is the
only one of its (tick, index) that was read to its end. With two nobody can know which one reached
the sink, so both go back.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Delivery:
    """Messages that one agent has handed to one attempt of one task."""

    agent: str
    number: int
    tick: int
    index: int
    attempt: int
    rows: int
    is_complete: bool = False


@dataclass
class Settlement:
    """What an agent shall do with its deliveries of committed batches."""

    ack: list[int] = field(default_factory=list)
    nack: list[int] = field(default_factory=list)


class Ledger:
    """All deliveries that are not settled yet."""

    def __init__(self, committed: int = 0) -> None:
        # No delivery of this tick or an earlier one may be added any more.
        self.committed = committed
        self._open: dict[tuple[str, int], Delivery] = {}
        # Told to ack or nack, and not confirmed; by agent and number, with the tick of the order.
        self._settling: dict[tuple[str, int], int] = {}
        self._rows_by_tick: dict[int, int] = defaultdict(int)
        # Complete deliveries of agents that are gone, by (tick, index): one of them may be what
        # reached the sink, so no other of its task is sure.
        self._lost: dict[tuple[int, int], int] = defaultdict(int)
        # Rows handed back because two attempts, or two actions of one sink, have read them.
        self.repeated_rows = 0

    @property
    def open_count(self) -> int:
        """Deliveries whose batch is not committed."""
        return len(self._open)

    @property
    def settling_count(self) -> int:
        """Deliveries that agents were told to settle and have not confirmed."""
        return len(self._settling)

    def rows_of(self, tick: int) -> int:
        """Count the rows that tasks of a batch have got."""
        return self._rows_by_tick.get(tick, 0)

    def deliver(self, delivery: Delivery) -> bool:
        """Note a delivery before its data goes out; False if its batch is over.

        A delivery that is noted already goes to a second reader: the same messages again.
        """
        if delivery.tick <= self.committed:
            return False
        if (delivery.agent, delivery.number) in self._open:
            return True
        self._open[delivery.agent, delivery.number] = delivery
        self._rows_by_tick[delivery.tick] += delivery.rows
        return True

    def complete(self, agent: str, number: int) -> bool:
        """Note that a task has read a delivery to its end; False if its batch is over."""
        delivery = self._open.get((agent, number))
        if delivery is None:
            return False
        delivery.is_complete = True
        return True

    def give_back(self, agent: str, number: int) -> None:
        """Note that a delivery was broken off, and its messages are with the agent again."""
        delivery = self._open.pop((agent, number), None)
        if delivery is not None:
            self._rows_by_tick[delivery.tick] -= delivery.rows

    def commit(self, tick: int) -> dict[str, Settlement]:
        """Close all batches up to a tick; returns what each agent shall do."""
        self.committed = max(self.committed, tick)
        closed = [d for d in self._open.values() if d.tick <= tick]
        complete: dict[tuple[int, int], int] = defaultdict(int)
        for task in [task for task in self._lost if task[0] <= tick]:
            complete[task] = self._lost.pop(task)
        for delivery in closed:
            complete[delivery.tick, delivery.index] += delivery.is_complete
        orders: dict[str, Settlement] = defaultdict(Settlement)
        for delivery in closed:
            del self._open[delivery.agent, delivery.number]
            self._settling[delivery.agent, delivery.number] = tick
            is_sure = delivery.is_complete and complete[delivery.tick, delivery.index] == 1
            if delivery.is_complete and not is_sure:
                self.repeated_rows += delivery.rows
            order = orders[delivery.agent]
            (order.ack if is_sure else order.nack).append(delivery.number)
        for old in [t for t in self._rows_by_tick if t <= tick]:
            del self._rows_by_tick[old]
        return dict(orders)

    def settled(self, agent: str, numbers: list[int]) -> None:
        """Note that an agent has done what it was told."""
        for number in numbers:
            self._settling.pop((agent, number), None)

    def expire(self, tick: int, batches: int) -> int:
        """Stop waiting for confirmations of orders older than so many batches."""
        old = [key for key, ordered in self._settling.items() if ordered + batches <= tick]
        for key in old:
            del self._settling[key]
        return len(old)

    def drop_agent(self, agent: str) -> None:
        """Forget an agent that is gone: its leases end by themselves and are delivered anew."""
        for key in [key for key in self._open if key[0] == agent]:
            delivery = self._open[key]
            if delivery.is_complete:
                self._lost[delivery.tick, delivery.index] += 1
            self.give_back(*key)
        for key in [key for key in self._settling if key[0] == agent]:
            del self._settling[key]
