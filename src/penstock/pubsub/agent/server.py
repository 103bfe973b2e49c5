"""Serves tasks on the same machine, over Arrow Flight on a Unix socket; runs in the agent.

A fetch announces its delivery to the coordinator before any data leaves, and a task ends only after
its `complete` was noted there: so when Spark commits a batch, the ledger knows all of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields

import pyarrow as pa
from pyarrow import flight

from penstock.errors import PenstockError
from penstock.pubsub.agent.batches import joined
from penstock.pubsub.agent.link import Link
from penstock.pubsub.agent.protocol import GaveBack
from penstock.pubsub.agent.reservoir import HeldDelivery, Reservoir
from penstock.pubsub.agent.spooler import BatchOverError, Spooler
from penstock.pubsub.encoding import ROW_SCHEMA
from penstock.pubsub.spool.format import SpoolKey

_LOG = logging.getLogger(__name__)
_NUMBER = b"penstock-delivery"


@dataclass(frozen=True)
class Fetch:
    """What a task asks for."""

    tick: int
    index: int
    attempt: int
    most_rows: int
    most_bytes: int
    # How many tasks of this batch are likely to fetch here; sets the share of each.
    tasks: int

    def ticket(self) -> flight.Ticket:
        """Give the form that travels."""
        return flight.Ticket(json.dumps(asdict(self)).encode())

    @classmethod
    def parse(cls, ticket: bytes) -> Fetch:
        """Read a ticket.

        Raises:
            ValueError: it is none.
        """
        values = json.loads(ticket)
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(cls)}:
            raise ValueError("not the fields of a fetch")
        if not all(type(value) is int and 0 <= value < 2**63 for value in values.values()):
            raise ValueError("not the numbers of a fetch")
        return cls(**values)


class AgentServer(flight.FlightServerBase):  # type: ignore[misc]
    """The agent's Flight service."""

    def __init__(
        self,
        location: str,
        reservoir: Reservoir,
        link: Link,
        report: Callable[[], None],
        failure: Callable[[], str | None],
        spooler: Spooler | None = None,
        shed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(location)
        self._reservoir = reservoir
        self._link = link
        self._report = report
        self._failure = failure
        self._spooler = spooler
        self._shed = shed

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.GeneratorStream:
        """Hand out one task's share."""
        try:
            fetch = Fetch.parse(ticket.ticket)
        except (ValueError, RecursionError):
            raise flight.FlightServerError("the ticket is not a fetch") from None
        self._raise_failure()

        def take() -> HeldDelivery:
            self._shed()
            return self._reservoir.take(
                fetch.tick, fetch.index, fetch.most_rows, fetch.most_bytes, fetch.tasks
            )

        if self._spooler is not None:
            return self._get_spooled(self._spooler, fetch, take)
        delivery = take()
        is_noted = False
        try:
            is_noted = self._link.ask_delivery(
                delivery.number, fetch.tick, fetch.index, fetch.attempt, delivery.rows
            )
        except PenstockError as exc:
            raise flight.FlightUnavailableError(str(exc)) from None
        finally:
            if not is_noted:
                self._reservoir.put_back(delivery.number)
        if not is_noted:
            raise flight.FlightCancelledError(f"batch {fetch.tick} is over")
        schema = ROW_SCHEMA.with_metadata({_NUMBER: str(delivery.number)})
        return flight.GeneratorStream(schema, self._send(delivery, context))

    def _get_spooled(
        self, spooler: Spooler, fetch: Fetch, take: Callable[[], HeldDelivery]
    ) -> flight.GeneratorStream:
        try:
            batches = spooler.fetch(SpoolKey(fetch.tick, fetch.index), take)
        except BatchOverError:
            raise flight.FlightCancelledError(f"batch {fetch.tick} is over") from None
        except PenstockError as exc:
            raise flight.FlightUnavailableError(str(exc)) from None
        # The status now: when the task ends, the driver knows what is left here.
        self._report()
        return flight.GeneratorStream(ROW_SCHEMA.with_metadata({_NUMBER: "0"}), iter(batches))

    def _send(
        self, delivery: HeldDelivery, context: flight.ServerCallContext
    ) -> Iterator[pa.RecordBatch]:
        is_sent = False
        try:
            for batch in joined(piece.rows for piece in delivery.pieces):
                if context.is_cancelled():
                    return
                yield batch
            is_sent = True
        finally:
            if is_sent:
                self._reservoir.end_read(delivery.number)
            elif self._reservoir.put_back(delivery.number):
                # A read that was broken off: the messages are ready for the next task at once.
                self._link.tell(GaveBack(delivery.number))

    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[bytes]:
        """`complete`: a task has read a delivery to its end. `ping`: is anybody there?"""
        del context
        if action.type == "complete":
            number = _parse_number(action.body.to_pybytes())
            # The status first: when the task ends, the driver knows what is left here.
            self._report()
            try:
                is_noted = self._link.ask_complete(number)
            except PenstockError as exc:
                raise flight.FlightUnavailableError(str(exc)) from None
            if not is_noted:
                # Its batch is over, or the link broke and it was handed back: it must not count.
                raise flight.FlightCancelledError(f"delivery {number} is not known any more")
        elif action.type != "ping":
            raise flight.FlightServerError(f"no action {action.type!r}")
        self._raise_failure()
        return iter([b"ok"])

    def _raise_failure(self) -> None:
        failure = self._failure()
        if failure is not None:
            raise flight.FlightServerError(failure)


def _parse_number(body: bytes) -> int:
    if not (body.isdigit() and len(body) < 20):
        raise flight.FlightServerError("that is not the number of a delivery")
    return int(body)


def delivery_number(schema: pa.Schema) -> int:
    """Read the delivery's number from a stream's schema; 0: it needs no word at its end."""
    return int(schema.metadata[_NUMBER])
