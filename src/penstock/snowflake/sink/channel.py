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
from penstock.snowflake.sink.deadline import within
from penstock.snowflake.sink.pool import POOL, ClientPool, PooledClient
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


@dataclass
class OpenChannel:
    """A channel that is open, and what is known of it."""

    channel: Any
    # The last committed offset token, as text.
    committed: str | None = None
    error_count: int = 0
    error_token: str | None = None
    error_message: str | None = None


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
        self._pool = pool
        self._clock = clock
        self._backoff = backoff or Backoff(first_seconds=0.2, longest_seconds=10.0)
        self._subject = f"Channel '{name}' of table {table}"
        # A channel that does not move for this long is opened again.
        self._stall_seconds = min(60.0, options.flush_timeout / 4)
        self._pooled: PooledClient | None = None
        self._opened: OpenChannel | None = None
        self._chunks: deque[Chunk] = deque()
        # How many of the chunks the SDK has.
        self._sent = 0
        self._size = 0
        self._reopens = 0
        self._progress_at = clock.monotonic()
        self._error_base: int | None = None
        # The token of rows that are to be sent again all the same.
        self._disowned: OffsetToken | None = None
        self._open()
        try:
            self.resumed = self._resume_point()
        except BaseException:
            self._drop_client()
            raise

    @property
    def committed(self) -> OffsetToken | None:
        """The committed token, if it is of this batch."""
        token = self._parsed(self._channel.committed)
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
        return max(0, self._channel.error_count - (self._error_base or 0))

    @property
    def has_refused(self) -> bool:
        """Whether the service has refused rows of this batch, in this or an earlier attempt."""
        return self.refused_count > 0 or self._refused_before()

    @property
    def error_message(self) -> str:
        """The service's words about the last refused row."""
        return self._channel.error_message or "no message given"

    @property
    def error_position(self) -> str:
        """Where the last refused row is."""
        token = self._channel.error_token
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
        """Keep client and channel for the next task, or close them after a failure."""
        pooled, self._pooled = self._pooled, None
        if pooled is None:
            return
        if is_good and self._close_channel():
            self._pool.give_back(self._options, self.table, pooled)
        else:
            self._pool.discard(self._options, self.table, pooled)

    def _close_channel(self) -> bool:
        """Close the channel; tells whether its client can be used again."""
        channel = self._channel.channel
        try:
            within(
                self._options.connect_timeout,
                self._subject,
                lambda: channel.close(wait_for_flush=False, timeout_seconds=0),
            )
        except (SdkError, ConnectError) as exc:
            # All is committed: nothing depends on it.
            _log.debug("closing %s: %s", self._subject, type(exc).__name__)
            return False
        return True

    @property
    def _channel(self) -> OpenChannel:
        if self._opened is None:
            raise RuntimeError("the channel is not open")
        return self._opened

    def _resume_point(self) -> OffsetToken:
        token = self._parsed(self._channel.committed)
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
            token = self._parsed(self._channel.error_token)
        except CheckpointError:
            return False
        return token is not None and token.batch == self._batch

    def _open(self) -> None:
        """Open the channel, as often as it takes until the time is over."""
        end = self._clock.monotonic() + self._options.flush_timeout
        attempt = 0
        while True:
            try:
                self._open_once()
            except SdkError as exc:
                cure = cure_of(exc)
                self._drop_client()
                if cure is Cure.KEY:
                    forget_key(self._options)
                    is_hopeless = attempt > 0
                else:
                    is_hopeless = cure in (Cure.MISSING, Cure.NONE)
                wait = self._backoff.seconds(attempt)
                if is_hopeless or self._clock.monotonic() + wait > end:
                    raise user_error(exc, self.table, self._options) from exc
                _log.warning("%s is opened again in %.1f s: %s", self._subject, wait, told(exc))
                self._clock.wait(wait)
                attempt += 1
            except BaseException:
                self._drop_client()
                raise
            else:
                return

    def _open_once(self) -> None:
        if self._pooled is None:
            self._pooled = self._pool.take(self._options, self.table)
        client = self._pooled.client
        # Opened for each batch: only that tells what is committed, because Spark gives a partition
        # now to this worker and now to that one.
        channel, status = within(
            self._options.flush_timeout, self._subject, lambda: client.open_channel(self.name)
        )
        self._opened = OpenChannel(channel)
        self._note(status)
        count = self._channel.error_count
        # The count never falls; if it does, the channel was dropped and made anew.
        self._error_base = count if self._error_base is None else min(self._error_base, count)

    def _drop_client(self) -> None:
        pooled, self._pooled = self._pooled, None
        if pooled is not None:
            self._pool.discard(self._options, self.table, pooled)

    def _note(self, status: Any) -> None:
        opened = self._channel
        opened.committed = status.latest_committed_offset_token
        opened.error_count = status.rows_error_count
        opened.error_token = status.last_error_offset_token_upper_bound
        opened.error_message = status.last_error_message

    def _pump(self) -> None:
        """Hand to the SDK what it has not yet."""
        attempt = 0
        while self._sent < len(self._chunks):
            chunk = self._chunks[self._sent]
            try:
                self._channel.channel.append_rows(chunk.rows, str(chunk.start), str(chunk.end))
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
                    self._channel.channel.initiate_flush()
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
        channel = self._channel.channel
        status = within(self._options.flush_timeout, self._subject, channel.get_channel_status)
        self._note(status)
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
        self._drop_client()
        self._clock.wait(self._backoff.seconds(self._reopens))
        self._open()
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
