"""What agents and the coordinator say to each other; one JSON object per gRPC message, pure.

An agent opens one bidirectional stream to the coordinator (as executors dial the driver), with the
run's secret in the metadata. `ask` messages carry a number and get an `answer` with the same one.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from typing import Any

from penstock.errors import WireError

LINK_METHOD = "/penstock.Coordinator/Link"
TOKEN_KEY = "penstock-token"  # noqa: S105 - a header's name
# A status is a few hundred bytes; an order names at most some thousand deliveries.
MAX_MESSAGE_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class Hello:
    """First message of an agent."""

    agent: str
    host: str
    pid: int
    # Of the machine, unless Spark tells what the executor has of it.
    cores: int
    is_executor_cores: bool


@dataclasses.dataclass(frozen=True)
class Status:
    """An agent's measurements; counters run from its start."""

    buffered_rows: int = 0
    buffered_bytes: int = 0
    unacked_rows: int = 0
    oldest_unacked_seconds: float = 0.0
    received: int = 0
    redelivered: int = 0
    # Messages that were in the spool already, acknowledged and dropped.
    dropped: int = 0
    acked: int = 0
    nacked: int = 0
    ack_failures: int = 0
    backoffs: int = 0
    streams: int = 0
    memory_bytes: int = 0
    # Seconds since a message came, and since the streams were first open; for draining.
    quiet_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Deliver:
    """Messages are about to go to a task; data follows only after a yes."""

    ask: int
    number: int
    tick: int
    index: int
    attempt: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Complete:
    """A task has read a delivery to its end; the task ends only after an answer."""

    ask: int
    number: int


@dataclasses.dataclass(frozen=True)
class GaveBack:
    """A delivery was broken off and is in the buffer again."""

    number: int


@dataclasses.dataclass(frozen=True)
class Settled:
    """Orders that are carried out."""

    numbers: list[int]


class Verdict(enum.StrEnum):
    """What becomes of a task that asks for its rows through the spool."""

    WRITE = "write"
    REPLAY = "replay"
    # Another agent is writing them.
    WAIT = "wait"
    OVER = "over"


class Noted(enum.StrEnum):
    """What the coordinator says of an object that was written."""

    NOTED = "noted"
    # The batch is committed without it.
    OVER = "over"
    # The agent stood still meanwhile: its messages may be in another object by now.
    STALE = "stale"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A task wants its rows, through the spool; answered by a decision."""

    ask: int
    tick: int
    index: int


@dataclasses.dataclass(frozen=True)
class Durable:
    """An object is written; acknowledged only after it is noted."""

    ask: int
    tick: int
    index: int
    rows: int
    size: int


@dataclasses.dataclass(frozen=True)
class GaveUp:
    """An object could not be written."""

    tick: int
    index: int


@dataclasses.dataclass(frozen=True)
class Found:
    """An object was there that nobody had told of."""

    tick: int
    index: int
    rows: int
    size: int


@dataclasses.dataclass(frozen=True)
class Acked:
    """The acknowledgements of an object's messages: all confirmed, or not."""

    tick: int
    index: int
    is_sure: bool


@dataclasses.dataclass(frozen=True)
class Fatal:
    """The agent cannot go on; the query shall fail with this."""

    code: str
    subject: str
    fact: str
    remedy: str
    log_tail: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """The coordinator's yes or no."""

    ask: int
    is_yes: bool


@dataclasses.dataclass(frozen=True)
class Decision:
    """The coordinator's verdict on a claim, or on an object that was written."""

    ask: int
    verdict: str


@dataclasses.dataclass(frozen=True)
class Suspect:
    """Look out for the messages of these objects, as (tick, index)."""

    keys: list[list[int]]


@dataclasses.dataclass(frozen=True)
class Order:
    """The coordinator's word on deliveries of committed batches."""

    ack: list[int]
    nack: list[int]


@dataclasses.dataclass(frozen=True)
class Release:
    """No task comes to this executor: hand the buffer back, and pull nothing for a while."""

    seconds: float


@dataclasses.dataclass(frozen=True)
class Stop:
    """The query has ended: hand everything back and end."""


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Hello, Status, Deliver, Complete, GaveBack, Settled, Fatal),
        *(Claim, Durable, GaveUp, Found, Acked),
        *(Answer, Decision, Order, Suspect, Release, Stop),
    )
}


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_key(value: Any) -> bool:
    return _is_list(value, _is_int) and len(value) == 2


# A field's type as it is written above -> what fits it.
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": lambda value: _is_int(value) or type(value) is float,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: isinstance(value, str),
    "list[int]": lambda value: _is_list(value, _is_int),
    "list[list[int]]": lambda value: _is_list(value, _is_key),
}


def _check_types(kind: Any, body: dict[str, Any]) -> None:
    for field in dataclasses.fields(kind):
        if field.name in body and not _FITS[str(field.type)](body[field.name]):
            raise ValueError(field.name)


def encode(message: Any) -> bytes:
    """Give a message its wire form."""
    body = {"kind": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, separators=(",", ":")).encode()


def decode(payload: bytes) -> Any:
    """Read a message.

    Raises:
        WireError: it is not one of ours.
    """
    try:
        body = json.loads(payload)
        kind = _KINDS[body.pop("kind")]
        _check_types(kind, body)
        return kind(**body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise WireError(
            "LINK",
            "A message between agent and coordinator",
            f"cannot be read ({type(exc).__name__})",
            "Install the same version of Penstock on the driver and on every executor",
        ) from None
