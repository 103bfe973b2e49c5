"""A channel's session against a scripted SDK: what the emulator cannot be made to do."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._core.clock import ManualClock
from penstock.errors import ConnectError, DataLossError
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.sink.channel import ChannelSession, Chunk
from penstock.snowflake.sink.pool import PooledClient
from penstock.snowflake.sink.sdk import SdkError
from penstock.snowflake.sink.tokens import OffsetToken

TABLE = TableName("D", "S", "T")
OPTIONS = SnowpipeOptions.parse(
    {"account": "a", "user": "u", "database": "d", "table": "t", "privateKeyFile": "k",
     "flushTimeout": "60s"}
)  # fmt: skip


def sdk_error(code: str, message: str = "scripted") -> SdkError:
    from snowflake.ingest.streaming.streaming_ingest_error import StreamingIngestErrorCode

    return SdkError(StreamingIngestErrorCode(code), message, 409, "Conflict")


class Service:
    """What is committed, and what the next calls do."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.committed: str | None = None
        self.error_count = 0
        self.error_token: str | None = None
        self.script: Iterator[Any] = iter(())
        self.opened = 0

    # As a client.
    def open_channel(self, name: str) -> tuple[Any, Any]:
        self.opened += 1
        return self, self.get_channel_status()

    # As a channel.
    def append_rows(self, rows: list[Any], start: str, end: str) -> None:
        step = next(self.script, None)
        if isinstance(step, Exception):
            raise step
        if step == "refuse":
            self.error_count += 1
            self.error_token = end
        elif step != "lose":
            self.rows += rows
        if step != "lose":
            self.committed = end

    def initiate_flush(self) -> None:
        pass

    def get_channel_status(self) -> Any:
        return SimpleNamespace(
            latest_committed_offset_token=self.committed,
            rows_error_count=self.error_count,
            last_error_offset_token_upper_bound=self.error_token,
            last_error_message="scripted refusal",
        )

    def close(self, **_: Any) -> None:
        pass


class Pool:
    """Gives the scripted service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.discarded = 0

    def take(self, *_: Any) -> PooledClient:
        return PooledClient(self.service, ())

    def give_back(self, *_: Any) -> None:
        pass

    def discard(self, *_: Any) -> None:
        self.discarded += 1


@pytest.fixture
def service() -> Service:
    return Service()


def open_session(service: Service, batch: int = 0) -> ChannelSession:
    return ChannelSession(
        OPTIONS,
        TABLE,
        "C",
        batch,
        pool=Pool(service),
        clock=ManualClock(),  # type: ignore[arg-type]
    )


def chunks(count: int, batch: int = 0) -> list[Chunk]:
    token, made = OffsetToken.begin(batch), []
    for number in range(count):
        end = token.after(b"%d\n" % number, 1)
        made.append(Chunk(token, end, [number], 10))
        token = end
    return made


@pytest.mark.parametrize(
    "code", ["ReceiverSaturated", "MemoryThresholdExceeded", "MemoryThresholdExceededInContainer"]
)
def test_rows_that_the_sdk_has_no_room_for_are_handed_over_later(
    service: Service, code: str
) -> None:
    service.script = iter([sdk_error(code)] * 5)
    session = open_session(service)
    for chunk in chunks(3):
        session.send(chunk)
    session.finish()
    assert service.rows == [0, 1, 2]
    assert service.opened == 1


def test_a_lack_of_room_that_stays_is_an_error_in_time(service: Service) -> None:
    service.script = iter([sdk_error("ReceiverSaturated")] * 10_000)
    session = open_session(service)
    with pytest.raises(ConnectError, match="SNOWPIPE_STALLED"):
        session.send(chunks(1)[0])


@pytest.mark.parametrize(
    "code", ["InvalidChannelError", "InvalidClientError", "ClosedClientError", "Fatal",
             "SfApiPipeFailedOverError", "HttpRetriesExhaustedError"]
)  # fmt: skip
def test_a_lost_client_is_made_anew_and_goes_on(service: Service, code: str) -> None:
    service.script = iter([None, "lose", sdk_error(code)])
    session = open_session(service)
    for chunk in chunks(4):
        session.send(chunk)
    session.finish()
    assert service.rows == [0, 1, 2, 3]
    assert service.opened == 2


def test_rows_that_are_lost_in_silence_are_sent_again(service: Service) -> None:
    service.script = iter([None, "lose"])
    session = open_session(service)
    for chunk in chunks(2):
        session.send(chunk)
    session.finish()
    assert service.rows == [0, 1]
    assert service.opened == 2


def test_a_refused_row_is_not_forgotten_when_the_channel_is_opened_again(
    service: Service,
) -> None:
    service.script = iter(["refuse", sdk_error("InvalidChannelError")])
    session = open_session(service)
    for chunk in chunks(2):
        session.send(chunk)
    session.finish()
    assert session.refused_count == 1
    assert session.has_refused
    # And an attempt that comes later, of the same batch, knows it too.
    assert open_session(service).has_refused
    assert not open_session(service, batch=1).has_refused


def test_a_token_that_is_not_ours_is_not_taken_for_progress(service: Service) -> None:
    service.script = iter(["lose", "lose", sdk_error("InvalidChannelError")])
    session = open_session(service)
    made = chunks(3)
    session.send(made[0])
    service.committed = str(OffsetToken(0, 7, 0xBAD))
    with pytest.raises(DataLossError, match="none of this task's"):  # noqa: PT012
        for chunk in made[1:]:
            session.send(chunk)
