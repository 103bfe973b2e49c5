"""The Pub/Sub emulator for tests: started in a process or a thread, asked over its admin service.

Runs in the test's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import IO, Any

import grpc

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.emulator.pubsub.admin import SERVICE
from penstock.emulator.pubsub.faults import Fault
from penstock.emulator.pubsub.server import PubSubServer
from penstock.errors import ConnectError

_START_SECONDS = 30.0
_CALL_SECONDS = 10.0
_ENVIRONMENT = "PUBSUB_EMULATOR_HOST"

__all__ = ["Fault", "PubSubEmulator", "SubscriptionCounters", "TopicCounters", "pubsub_emulator"]


@dataclasses.dataclass(frozen=True)
class SubscriptionCounters:
    """What happened on a subscription, in messages; `outstanding` and `unacked` are of now."""

    published: int
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    outstanding: int
    unacked: int
    streams: int


@dataclasses.dataclass(frozen=True)
class TopicCounters:
    """What was published to a topic, and what the emulator holds of it now."""

    published: int
    published_bytes: int
    stored: int
    stored_bytes: int


class PubSubEmulator:
    """A running emulator, wherever it runs; all methods are safe from any thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address)

    def close(self) -> None:
        """Close the connection; the emulator goes on."""
        self._channel.close()

    def counters(self, subscription: str) -> SubscriptionCounters:
        """Count what happened on a subscription (full resource name)."""
        return SubscriptionCounters(**self._call("Counters", subscription=subscription))

    def topic_counters(self, topic: str) -> TopicCounters:
        """Count what was published to a topic (full resource name)."""
        return TopicCounters(**self._call("TopicCounters", topic=topic))

    def calls(self) -> dict[str, int]:
        """Count the calls of each method, Publish or StreamingPull for example."""
        return dict(self._call("Stats")["calls"])

    def faults_struck(self) -> dict[str, int]:
        """Count the faults that struck, by kind."""
        return dict(self._call("Stats")["faults"])

    def pid(self) -> int:
        """Give the id of the process that serves."""
        return int(self._call("Stats")["pid"])

    def inject(self, fault: Fault) -> None:
        """Put a fault in force."""
        self._call("Inject", **fault.to_json())

    def clear_faults(self) -> None:
        """Take all faults back."""
        self._call("ClearFaults")

    def deny(self, permission: str) -> None:
        """Take a permission away, `pubsub.topics.publish` for example."""
        self._call("Deny", permission=permission)

    def allow(self, permission: str) -> None:
        """Give a denied permission back."""
        self._call("Deny", permission=permission, allow=True)

    def restart(self, seconds: float = 0.0) -> None:
        """Let the service go away for a while: connections are cut, messages and leases stay."""
        self._call("Restart", seconds=seconds)

    def _call(self, method: str, /, **request: Any) -> dict[str, Any]:
        call = self._channel.unary_unary(f"/{SERVICE}/{method}")
        answer = call(json.dumps(request).encode(), timeout=_CALL_SECONDS, wait_for_ready=True)
        decoded: dict[str, Any] = json.loads(answer)
        return decoded


@contextlib.contextmanager
def pubsub_emulator(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    in_process: bool = False,
    clock: Clock | None = None,
) -> Iterator[PubSubEmulator]:
    """Run an emulator, with PUBSUB_EMULATOR_HOST set to it, for the length of a `with` block.

    Args:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        in_process: serve from a thread of this process instead of a process of its own.
        clock: the emulator's clock, for tests that own the time; needs `in_process`.
    """
    if clock is not None and not in_process:
        raise ValueError("a clock of your own needs in_process=True")
    running = _in_thread(host, port, clock or SYSTEM_CLOCK) if in_process else _in_child(host, port)
    with running as address:
        emulator = PubSubEmulator(address)
        before = os.environ.get(_ENVIRONMENT)
        os.environ[_ENVIRONMENT] = address
        try:
            yield emulator
        finally:
            if before is None:
                os.environ.pop(_ENVIRONMENT, None)
            else:
                os.environ[_ENVIRONMENT] = before
            emulator.close()


@contextlib.contextmanager
def _in_child(host: str, port: int) -> Iterator[str]:
    command = [sys.executable, "-m", "penstock.emulator.pubsub.server", host, str(port)]
    # A file takes any amount of log; a pipe that nobody reads would stop the child.
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        assert child.stdout is not None  # noqa: S101 - it was asked for
        # A child that dies ends the read below; one that hangs is ended by the timer.
        timer = threading.Timer(_START_SECONDS, child.kill)
        timer.start()
        try:
            address = child.stdout.readline().decode().strip()
            timer.cancel()
            if not address:
                raise ConnectError(
                    "EMULATOR_START",
                    f"The Pub/Sub emulator on {host}:{port}",
                    f"did not start: {_last_line(log) or 'no message'}",
                    "Choose another port (0 takes a free one), or see the message",
                )
            yield address
        finally:
            timer.cancel()
            # Closing its standard input ends it.
            try:
                child.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


@contextlib.contextmanager
def _in_thread(host: str, port: int, clock: Clock) -> Iterator[str]:
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        server = PubSubServer(clock)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            address = await server.start(host, port)
        except ConnectError as exc:
            started.set_exception(exc)
            return
        started.set_result((address, functools.partial(loop.call_soon_threadsafe, stopped.set)))
        await stopped.wait()
        await server.stop()

    # asyncio.run waits for the tasks of open calls; a loop that is only stopped would drop them.
    thread = threading.Thread(
        target=lambda: asyncio.run(serve()), name="penstock-emulator", daemon=True
    )
    thread.start()
    try:
        address, stop = started.result(_START_SECONDS)
        try:
            yield address
        finally:
            stop()
    finally:
        thread.join()
