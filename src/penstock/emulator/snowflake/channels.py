"""Channels: sequencers, continuation tokens, committed offset tokens; runs in the emulator.

A channel's state is stored in the table's database, in the transaction that inserts the rows: what
its committed offset token says is in the table is there, also after a SIGKILL.
"""

# ruff: noqa: S608 - names are quoted, values are parameters

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from typing import Any

import duckdb

from penstock.emulator.snowflake import ingest
from penstock.emulator.snowflake.database import Database
from penstock.emulator.snowflake.errors import RefusedError
from penstock.emulator.snowflake.faults import FaultPlan
from penstock.emulator.snowflake.tables import TableName, note_inserts, target_of

_LOGGER = logging.getLogger(__name__)
ChannelKey = tuple[str, str, str, str]


@dataclasses.dataclass
class State:
    """What is stored of a channel; the fields are the columns of the table, in its order."""

    sequencer: int = 0
    position: int = 0
    last_request: str | None = None
    committed: str | None = None
    created_ms: int = 0
    rows_parsed: int = 0
    rows_inserted: int = 0
    rows_error_count: int = 0
    last_error_message: str | None = None
    last_error_token: str | None = None
    last_error_ms: int | None = None


_FIELDS = [field.name for field in dataclasses.fields(State)]


class Channel:
    """One channel; its lock lets one request at a time change it."""

    def __init__(self, key: ChannelKey, table: TableName, state: State) -> None:
        self.key = key
        self.table = table
        self.state = state
        self.lock = threading.RLock()
        # Requests that were accepted and wait for their time: the position runs ahead of the state.
        self.position = state.position
        self.last_request = state.last_request
        self.pending: deque[tuple[float, int, tuple[str, str | None, bytes]]] = deque()
        self.is_frozen = False
        self.is_open = False

    def status(self) -> dict[str, Any]:
        """Give the status as the service shows it."""
        database, schema, pipe, name = self.key
        state = self.state
        return {
            "database_name": database,
            "schema_name": schema,
            "pipe_name": pipe,
            "channel_name": name,
            "channel_status_code": "SUCCESS",
            "last_committed_offset_token": state.committed,
            "created_on_ms": state.created_ms,
            "rows_inserted": state.rows_inserted,
            "rows_parsed": state.rows_parsed,
            "rows_error_count": state.rows_error_count,
            "last_error_offset_upper_bound": state.last_error_token,
            "last_error_message": state.last_error_message,
            "last_error_timestamp_ms": state.last_error_ms,
            "snowflake_avg_processing_latency_ms": 0,
        }

    def token(self) -> str:
        """Give the continuation token that the next request has to bring."""
        return f"{self.state.sequencer}_{self.position}"


class Channels:
    """All channels; safe from any thread."""

    def __init__(self, database: Database, faults: FaultPlan) -> None:
        self._database = database
        self._faults = faults
        self._lock = threading.Lock()
        self._channels: dict[ChannelKey, Channel] = {}
        for name in database.names():
            self._load(name)

    def _load(self, database: str) -> None:
        connection = self._database.cursor()
        try:
            stored = connection.execute(
                f"SELECT schema, pipe, channel, {', '.join(_FIELDS)} FROM "
                f"{TableName(database, '', '').hidden('channels')}"
            ).fetchall()
        finally:
            connection.close()
        for schema, pipe, channel, *fields in stored:
            key = (database, schema, pipe, channel)
            try:
                table = target_of(self._database, database, schema, pipe)
            except RefusedError:
                continue  # the table was dropped, and its channels with it
            self._channels[key] = Channel(key, table, State(*fields))

    def open(
        self, key: ChannelKey, offset_token: str | None, *, fail_on_uncommitted: bool
    ) -> tuple[str, dict[str, Any]]:
        """Open a channel, new or again; returns the continuation token and the status."""
        table = target_of(self._database, *key[:3])
        with self._lock:
            channel = self._channels.get(key)
            if channel is None or channel.table != table:
                channel = Channel(key, table, State(created_ms=_now_ms()))
                self._channels[key] = channel
        with channel.lock:
            if channel.pending and fail_on_uncommitted:
                raise RefusedError(
                    409,
                    "ERR_CHANNEL_HAS_UNCOMMITTED_DATA",
                    f"Channel {key[3]} has rows that are not committed yet",
                )
            channel.pending.clear()
            channel.is_frozen = False
            state = dataclasses.replace(
                channel.state,
                sequencer=channel.state.sequencer + 1,
                position=0,
                last_request=None,
                committed=offset_token or channel.state.committed,
            )
            with self._database.transaction() as connection:
                self._store(connection, channel, state)
            channel.state = state
            channel.position = 0
            channel.last_request = None
            channel.is_open = True
            return channel.token(), channel.status()

    def append(
        self, key: ChannelKey, token: str, request: str, offset_token: str | None, lines: bytes
    ) -> str:
        """Take the rows of one request; returns the next continuation token."""
        channel = self._existing(key)
        with channel.lock:
            if self._is_repeated(channel, token, request):
                return channel.token()
            if channel.table != target_of(self._database, *key[:3]):
                raise _stale(f"The table behind channel {key[3]} was replaced")
            if self._faults.draw("freeze_channel", "append_rows", key[3]):
                channel.is_frozen = True
            fault = self._faults.draw("delay_commit", "append_rows", key[3])
            position = channel.position + 1
            if channel.is_frozen:
                pass
            elif fault or channel.pending:
                self._later(
                    channel, fault.seconds if fault else 0.0, (request, offset_token, lines)
                )
            else:
                self._commit(channel, position, (request, offset_token, lines))
            channel.position = position
            channel.last_request = request
            return channel.token()

    def _is_repeated(self, channel: Channel, token: str, request: str) -> bool:
        """Tell whether the request was done before; refuse one that is out of its order."""
        sequencer, _, position = token.partition("_")
        if not sequencer.isdecimal() or not position.isdecimal():
            raise RefusedError(
                400, "INVALID_CONTINUATION_TOKEN", f"{token!r} is not a continuation token"
            )
        if int(sequencer) != channel.state.sequencer:
            raise _stale(f"Channel {channel.key[3]} was opened again since")
        if int(position) == channel.position:
            return False
        if int(position) == channel.position - 1 and request and request == channel.last_request:
            return True
        raise RefusedError(
            400,
            "STALE_CONTINUATION_TOKEN",
            f"The continuation token of channel {channel.key[3]} is not the latest",
        )

    def _later(
        self, channel: Channel, seconds: float, request: tuple[str, str | None, bytes]
    ) -> None:
        """Commit a request when its time has come, and after those before it."""
        due = time.monotonic() + seconds
        if channel.pending:
            due = max(due, channel.pending[-1][0])
        channel.pending.append((due, channel.position + 1, request))
        if len(channel.pending) == 1:
            self._await_pending(channel)

    def _await_pending(self, channel: Channel) -> None:
        def work(sequencer: int) -> None:
            with channel.lock:
                if channel.state.sequencer != sequencer:
                    return  # it was opened again, or dropped
                while channel.pending and channel.pending[0][0] <= time.monotonic():
                    _, position, request = channel.pending[0]
                    try:
                        self._commit(channel, position, request)
                    except RefusedError as exc:
                        _LOGGER.warning("delayed rows were refused: %s", exc.code)
                    channel.pending.popleft()
                if channel.pending:
                    self._await_pending(channel)

        seconds = max(0.0, channel.pending[0][0] - time.monotonic())
        timer = threading.Timer(seconds, work, [channel.state.sequencer])
        timer.daemon = True
        timer.start()

    def _commit(
        self, channel: Channel, position: int, request: tuple[str, str | None, bytes]
    ) -> None:
        """Insert rows and move the state, both or neither."""
        request_id, offset_token, lines = request
        _, _, pipe, name = channel.key
        with self._database.form_lock, self._database.transaction() as connection:
            done = ingest.insert(connection, channel.table, lines, (pipe, name, offset_token or ""))
            state = dataclasses.replace(
                channel.state,
                position=position,
                last_request=request_id,
                committed=offset_token or channel.state.committed,
                rows_parsed=channel.state.rows_parsed + done.parsed,
                rows_inserted=channel.state.rows_inserted + done.inserted,
            )
            if done.refused:
                state.rows_error_count += done.refused
                state.last_error_message = done.message
                state.last_error_token = offset_token
                state.last_error_ms = _now_ms()
            note_inserts(self._database, connection, channel.table, done.inserted)
            self._store(connection, channel, state)
        channel.state = state

    def _store(self, connection: duckdb.DuckDBPyConnection, channel: Channel, state: State) -> None:
        where = channel.table.hidden("channels")
        _, schema, pipe, name = channel.key
        values = list(dataclasses.astuple(state))
        settings = ", ".join(f"{field} = ?" for field in _FIELDS)
        changed = connection.execute(
            f"UPDATE {where} SET {settings} WHERE schema = ? AND pipe = ? AND channel = ?",
            [*values, schema, pipe, name],
        ).fetchone()
        if not changed or not changed[0]:
            marks = ", ".join("?" * (3 + len(values)))
            connection.execute(
                f"INSERT INTO {where} VALUES ({marks})",
                [schema, pipe, name, *values],
            )

    def statuses(self, pipe: tuple[str, str, str], names: list[str]) -> dict[str, Any]:
        """Give the status of each channel."""
        target_of(self._database, *pipe)
        answer = {}
        for name in names:
            channel = self._channels.get((*pipe, name.upper()))
            if channel is not None:
                with channel.lock:
                    answer[name] = channel.status()
            else:
                raise _unknown(name)
        return answer

    def drop(self, key: ChannelKey) -> str | None:
        """Forget a channel and its token; returns the token."""
        channel = self._existing(key)
        with self._lock, channel.lock:
            channel.pending.clear()
            with self._database.transaction() as connection:
                connection.execute(
                    f"DELETE FROM {channel.table.hidden('channels')} "
                    "WHERE schema = ? AND pipe = ? AND channel = ?",
                    list(key[1:]),
                )
            self._channels.pop(key, None)
            channel.state.sequencer += 1
            return channel.state.committed

    def _existing(self, key: ChannelKey) -> Channel:
        target_of(self._database, *key[:3])
        channel = self._channels.get(key)
        if channel is None:
            raise _unknown(key[3])
        return channel

    def all(self) -> list[dict[str, Any]]:
        """Give the status of every channel."""
        with self._lock:
            channels = list(self._channels.values())
        return [channel.status() | {"is_open": channel.is_open} for channel in channels]


def _unknown(name: str) -> RefusedError:
    return RefusedError(
        404,
        "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED",
        f"Channel {name} does not exist or is not authorized",
    )


def _stale(message: str) -> RefusedError:
    return RefusedError(400, "STALE_CONTINUATION_TOKEN_SEQUENCER", message)


def _now_ms() -> int:
    return int(time.time() * 1000)
