"""One channel during one task: sends chunks, follows the committed token, recovers; in workers.

What is sent is kept until the service says it is committed, so that a channel that is lost or does
not move can be opened again and go on from its committed token. Never waits without an end.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import CheckpointError, ConnectError, DataLossError, WriteRejectedError
from penstock.retry import Backoff
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.private_key import forget_key
from penstock.snowflake.sink.handle import ChannelHandle
from penstock.snowflake.sink.pool import POOL, ClientPool
from penstock.snowflake.sink.sdk import Cure, SdkError, cure_of, told, user_error
from penstock.snowflake.sink.tokens import OffsetToken

_log = logging.getLogger(__name__)
# Sent and not yet committed; more than a few seconds of a channel's 20 MB/s helps nobody.
_MOST_BYTES = 32_000_000
_MOST_REOPENS = 4
_POLL = Backoff(first_seconds=0.05, longest_seconds=1.0, factor=1.5, floor_seconds=0.05)


@dataclass(frozen=True)
class Chunk:
    """Rows that are handed to the SDK in one call."""

    start: OffsetToken
    end: OffsetToken
    rows: list[Any]
    size: int


class ChannelSession:
    """Owns a channel for one task and one batch."""

    def __init__(
        self,
        options: SnowpipeOptions,
        table: TableName,
        name: str,
        batch: int,
        *,
        pool: ClientPool = POOL,
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff | None = None,
    ) -> None:
        self._options = options
        self.table = table
        self.name = name
        self._batch = batch
        self._clock = clock
        self._backoff = backoff or Backoff(first_seconds=0.2, longest_seconds=10.0)
        self._handle = ChannelHandle(options, table, name, pool, clock, self._backoff)
        self._subject = self._handle.subject
        # A channel that does not move for this long is opened again.
        self._stall_seconds = min(60.0, options.flush_timeout / 4)
        self._chunks: deque[Chunk] = deque()
        # How many of the chunks the SDK has.
        self._sent = 0
        self._size = 0
        self._reopens = 0
        self._progress_at = clock.monotonic()
        # The token of rows that are to be sent again all the same.
        self._disowned: OffsetToken | None = None
        self._handle.open()
        try:
            self.resumed = self._resume_point()
        except BaseException:
            self._handle.drop_client()
            raise

    @property
    def committed(self) -> OffsetToken | None:
        """The committed token, if it is of this batch."""
        token = self._parsed(self._handle.state.committed)
        if token is None or token.batch != self._batch or token == self._disowned:
            return None
        return token

    def forget_resumed(self) -> None:
        """Have the batch begin anew, although rows of it are committed."""
        self._disowned = self.resumed
        self.resumed = OffsetToken.begin(self._batch)

    @property
    def refused_count(self) -> int:
        """How many rows the service has refused since the session began."""
        return self._handle.refused_count

    @property
    def has_refused(self) -> bool:
        """Whether the service has refused rows of this batch, in this or an earlier attempt."""
        return self.refused_count > 0 or self._refused_before()

    @property
    def error_message(self) -> str:
        """The service's words about the last refused row."""
        return self._handle.state.error_message or "no message given"

    @property
    def error_position(self) -> str:
        """Where the last refused row is."""
        token = self._handle.state.error_token
        try:
            return "unknown" if token is None else f"{OffsetToken.parse(token).rows} or before it"
        except ValueError:
            return "unknown"

    def send(self, chunk: Chunk) -> None:
        """Hand over rows; waits while too much is not committed.

        Raises:
            PenstockError: the service does not take them in time.
        """
        # The source may have been slow: that is not the channel's time.
        self._progress_at = self._clock.monotonic()
        self._chunks.append(chunk)
        self._size += chunk.size
        self._pump()
        if self._size > _MOST_BYTES:
            self._await(lambda: self._size <= _MOST_BYTES // 2)

    def finish(self) -> None:
        """Wait until everything is committed.

        Raises:
            PenstockError: it is not in time, or the service refused a row.
        """
        self._await(lambda: not self._chunks)

    def release(self, *, is_good: bool) -> None:
        """Keep the client for the next task, or close it after a failure."""
        self._handle.release(is_good=is_good)

    def _resume_point(self) -> OffsetToken:
        token = self._parsed(self._handle.state.committed)
        if token is None or token.batch < self._batch:
            return OffsetToken.begin(self._batch)
        if token.batch > self._batch:
            raise CheckpointError(
                "CHANNEL_AHEAD",
                self._subject,
                f"has rows of batch {token.batch}, but this query is at batch {self._batch}",
                "The checkpoint is older than the table: a new checkpoint needs another "
                "'channelPrefix', and two queries must not share one",
            )
        return token

    def _parsed(self, text: str | None) -> OffsetToken | None:
        if not text:
            return None
        try:
            return OffsetToken.parse(text)
        except ValueError as exc:
            raise CheckpointError(
                "CHANNEL_FOREIGN",
                self._subject,
                f"its offset token {text!r} is not of this version of Penstock",
                "Something else writes to this channel: choose another 'channelPrefix'",
            ) from exc

    def _refused_before(self) -> bool:
        """Tell whether the service has refused rows of this batch in an earlier attempt."""
        try:
            token = self._parsed(self._handle.state.error_token)
        except CheckpointError:
            return False
        return token is not None and token.batch == self._batch

    def _pump(self) -> None:
        """Hand to the SDK what it has not yet."""
        attempt = 0
        while self._sent < len(self._chunks):
            chunk = self._chunks[self._sent]
            try:
                self._handle.state.channel.append_rows(chunk.rows, str(chunk.start), str(chunk.end))
            except SdkError as exc:
                if cure_of(exc) is not Cure.WAIT:
                    self._recover(exc)
                    continue
                # The SDK's buffers are full; they empty as it sends.
                self._check_time(told(exc))
                self._clock.wait(self._backoff.seconds(attempt))
                attempt += 1
                self._look_safely()
            else:
                self._sent += 1
                attempt = 0

    def _await(self, is_done: Any) -> None:
        """Follow the committed token until something is so."""
        self._progress_at = self._clock.monotonic()
        is_flushed = False
        attempt = 0
        while not is_done():
            try:
                if not is_flushed:
                    self._handle.state.channel.initiate_flush()
                    is_flushed = True
                has_moved = self._look()
            except SdkError as exc:
                self._recover(exc)
                self._pump()
                is_flushed = False
                continue
            if has_moved:
                attempt = 0
                continue
            self._check_time("nothing is committed")
            if self._clock.monotonic() - self._progress_at > self._stall_seconds * (
                self._reopens + 1
            ):
                self._recover(None)
                self._pump()
                is_flushed = False
                continue
            self._clock.wait(_POLL.seconds(attempt))
            attempt += 1

    def _look(self) -> bool:
        """Ask for the status and forget what is committed; tells whether anything was."""
        self._handle.look()
        return self._forget_committed()

    def _look_safely(self) -> None:
        try:
            self._look()
        except SdkError as exc:
            self._recover(exc)

    def _forget_committed(self) -> bool:
        token = self.committed
        if token is None:
            return False
        has_moved = False
        while self._sent and self._chunks and self._chunks[0].end.rows <= token.rows:
            chunk = self._chunks.popleft()
            if chunk.end.rows == token.rows and chunk.end != token:
                raise self._superseded("its committed rows are not those that this task has sent")
            self._size -= chunk.size
            self._sent -= 1
            has_moved = True
        if has_moved:
            self._progress_at = self._clock.monotonic()
            self._reopens = 0
        return has_moved

    def _check_time(self, fact: str) -> None:
        silent = self._clock.monotonic() - self._progress_at
        if silent > self._options.flush_timeout:
            raise ConnectError(
                "SNOWPIPE_STALLED",
                self._subject,
                f"{fact} for {silent:.0f} s, with {len(self._chunks)} chunks of rows waiting",
                "See the channel in SNOWPIPE_STREAMING_CHANNEL_HISTORY; if the service is only "
                "slow, raise option 'flushTimeout'. What was committed is kept",
            )

    def _recover(self, exc: SdkError | None) -> None:
        """Open the channel again, and go on from its committed token."""
        words = "its committed token does not move" if exc is None else told(exc)
        cure = Cure.REOPEN if exc is None else cure_of(exc)
        if cure is Cure.SUPERSEDED:
            # Opening it again would take it from the attempt that has it now.
            raise self._superseded(words) from exc
        if exc is not None and cure in (Cure.MISSING, Cure.NONE):
            raise user_error(exc, self.table, self._options) from exc
        if cure is Cure.KEY:
            forget_key(self._options)
        self._reopens += 1
        if self._reopens > _MOST_REOPENS:
            raise ConnectError(
                "SNOWPIPE_STALLED",
                self._subject,
                f"was opened {_MOST_REOPENS} times without moving on: {words}",
                "See the channel in SNOWPIPE_STREAMING_CHANNEL_HISTORY, and the table's pipe; what "
                "was committed is kept",
            ) from exc
        self._check_time(words)
        _log.warning("%s is opened again: %s", self._subject, words)
        self._handle.drop_client()
        self._clock.wait(self._backoff.seconds(self._reopens))
        self._handle.open()
        self._rewind()

    def _rewind(self) -> None:
        """Find the place in what was sent from which to go on."""
        self._sent = 0
        if not self._chunks:
            return
        token = self.committed or OffsetToken.begin(self._batch)
        bounds = [self._chunks[0].start, *(chunk.end for chunk in self._chunks)]
        if token not in bounds:
            raise DataLossError(
                "CHANNEL_MOVED",
                self._subject,
                f"its committed token {token} is none of this task's",
                "Something else writes to this channel: two queries with one 'channelPrefix', or "
                "the table was replaced",
            )
        for _ in range(bounds.index(token)):
            self._size -= self._chunks.popleft().size

    def _superseded(self, words: str) -> WriteRejectedError:
        return WriteRejectedError(
            "CHANNEL_SUPERSEDED",
            self._subject,
            f"another attempt of this task, or another query, has taken it over: {words}",
            "If this task was run again, nothing is wrong: the later attempt writes the rows. If "
            "two queries write, give each its own 'channelPrefix'",
        )
