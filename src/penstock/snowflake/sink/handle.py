"""A client and a channel while a task has them: opened, asked, closed; runs in workers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from penstock._core.clock import Clock
from penstock.errors import ConnectError
from penstock.retry import Backoff
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.private_key import forget_key
from penstock.snowflake.sink.deadline import within
from penstock.snowflake.sink.pool import ClientPool, PooledClient
from penstock.snowflake.sink.sdk import Cure, SdkError, cure_of, told, user_error

_log = logging.getLogger(__name__)


@dataclass
class OpenChannel:
    """A channel that is open, and what is known of it."""

    channel: Any
    # The last committed offset token, as text.
    committed: str | None = None
    error_count: int = 0
    error_token: str | None = None
    error_message: str | None = None


class ChannelHandle:
    """Holds a client of the pool and one channel of it."""

    def __init__(
        self,
        options: SnowpipeOptions,
        table: TableName,
        name: str,
        pool: ClientPool,
        clock: Clock,
        backoff: Backoff,
    ) -> None:
        self._options = options
        self._table = table
        self._name = name
        self._pool = pool
        self._clock = clock
        self._backoff = backoff
        self.subject = f"Channel '{name}' of table {table}"
        self._pooled: PooledClient | None = None
        self._opened: OpenChannel | None = None
        # What the count of refused rows was at the beginning.
        self._error_base: int | None = None

    @property
    def state(self) -> OpenChannel:
        """What is known of the channel."""
        if self._opened is None:
            raise RuntimeError("the channel is not open")
        return self._opened

    @property
    def refused_count(self) -> int:
        """How many rows the service has refused since the first opening."""
        return max(0, self.state.error_count - (self._error_base or 0))

    def open(self) -> None:
        """Open the channel, as often as it takes until the time is over."""
        end = self._clock.monotonic() + self._options.flush_timeout
        attempt = 0
        while True:
            try:
                self._open_once()
            except SdkError as exc:
                cure = cure_of(exc)
                self.drop_client()
                if cure is Cure.KEY:
                    forget_key(self._options)
                    is_hopeless = attempt > 0
                else:
                    is_hopeless = cure in (Cure.MISSING, Cure.NONE)
                wait = self._backoff.seconds(attempt)
                if is_hopeless or self._clock.monotonic() + wait > end:
                    raise user_error(exc, self._table, self._options) from exc
                _log.warning("%s is opened again in %.1f s: %s", self.subject, wait, told(exc))
                self._clock.wait(wait)
                attempt += 1
            except BaseException:
                self.drop_client()
                raise
            else:
                return

    def _open_once(self) -> None:
        if self._pooled is None:
            self._pooled = self._pool.take(self._options, self._table)
        client = self._pooled.client
        # Opened for each batch: only that tells what is committed, because Spark gives a partition
        # now to this worker and now to that one.
        channel, status = within(
            self._options.flush_timeout, self.subject, lambda: client.open_channel(self._name)
        )
        self._opened = OpenChannel(channel)
        self._note(status)
        count = self.state.error_count
        # The count never falls; if it does, the channel was dropped and made anew.
        self._error_base = count if self._error_base is None else min(self._error_base, count)

    def drop_client(self) -> None:
        """Close the client, which has met an error."""
        pooled, self._pooled = self._pooled, None
        if pooled is not None:
            self._pool.discard(self._options, self._table, pooled)

    def look(self) -> None:
        """Ask for the channel's status."""
        channel = self.state.channel
        self._note(within(self._options.flush_timeout, self.subject, channel.get_channel_status))

    def release(self, *, is_good: bool) -> None:
        """Keep client and channel for the next task, or close them after a failure."""
        pooled, self._pooled = self._pooled, None
        if pooled is None:
            return
        if is_good and self._close_channel():
            self._pool.give_back(self._options, self._table, pooled)
        else:
            self._pool.discard(self._options, self._table, pooled)

    def _close_channel(self) -> bool:
        """Close the channel; tells whether its client can be used again."""
        channel = self.state.channel
        try:
            within(
                self._options.connect_timeout,
                self.subject,
                lambda: channel.close(wait_for_flush=False, timeout_seconds=0),
            )
        except (SdkError, ConnectError) as exc:
            # All is committed: nothing depends on it.
            _log.debug("closing %s: %s", self.subject, type(exc).__name__)
            return False
        return True

    def _note(self, status: Any) -> None:
        opened = self.state
        opened.committed = status.latest_committed_offset_token
        opened.error_count = status.rows_error_count
        opened.error_token = status.last_error_offset_token_upper_bound
        opened.error_message = status.last_error_message
