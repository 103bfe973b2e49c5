"""Finds this executor's agent, or starts it; runs in a Python worker.

One agent per query run and executor: its directory is named for the run and for the worker's
parent, the executor's Python daemon, which outlives workers. A file lock makes sure that of many
tasks only one starts it. Secrets go through a pipe, never through arguments or environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pyarrow import flight

from penstock.errors import AgentError
from penstock.pubsub.agent.config import AgentConfig

_START_SECONDS = 60.0
# Linux allows 108 bytes for the path of a Unix socket.
_LONGEST_SOCKET_PATH = 100
_LOG_TAIL_BYTES = 4000


def agent_directory(run: str, parent: int) -> Path:
    """Name the directory of one agent: short, private to this user and run."""
    name = hashlib.sha256(f"{run}/{parent}".encode()).hexdigest()[:16]
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - checked and private below
        path = Path(base) / f"penstock-{os.getuid()}" / name
        if len(str(path / "agent.sock")) <= _LONGEST_SOCKET_PATH:
            return path
    raise AgentError(
        "SOCKET_PATH",
        f"Temporary directory '{tempfile.gettempdir()}'",
        "its path is too long for a Unix socket",
        "Set TMPDIR of the executors to a shorter path",
    )


# Of this worker, by location: workers run many tasks, and a connection costs more than a call.
_CLIENTS: dict[str, flight.FlightClient] = {}


def agent_client(config: AgentConfig) -> flight.FlightClient:
    """Give a connection to this executor's agent, starting the agent if there is none.

    Raises:
        AgentError: it does not start.
    """
    directory = agent_directory(config.run, config.parent)
    location = f"grpc+unix://{directory / 'agent.sock'}"
    client = _CLIENTS.get(location)
    if client is not None and _answers(client):
        return client
    for old in [key for key in _CLIENTS if key == location or not _socket_of(key).exists()]:
        _CLIENTS.pop(old).close()
    _CLIENTS[location] = flight.connect(ensure_agent(config))
    return _CLIENTS[location]


def _socket_of(location: str) -> Path:
    return Path(location.removeprefix("grpc+unix://"))


def ensure_agent(config: AgentConfig) -> str:
    """Give the location of the agent, starting it if there is none.

    Raises:
        AgentError: it does not start.
    """
    directory = agent_directory(config.run, config.parent)
    location = f"grpc+unix://{directory / 'agent.sock'}"
    if is_alive(location):
        return location
    with locked(directory):
        if not is_alive(location):
            _sweep(directory)
            _start(config, directory)
    return location


def is_alive(location: str) -> bool:
    """Tell whether an agent answers there."""
    try:
        # Refused at once where nobody listens; Flight would try for a while.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(_socket_of(location)))
    except OSError:
        return False
    with flight.connect(location) as client:
        return _answers(client)


def _answers(client: flight.FlightClient) -> bool:
    try:
        list(client.do_action("ping", flight.FlightCallOptions(timeout=5.0)))
    except flight.FlightServerError:
        # It answers, and has an error to tell: the fetch will get it.
        return True
    except (flight.FlightError, OSError):
        return False
    return True


def _make_private(directory: Path) -> None:
    for path in (directory.parent, directory):
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o077:
            raise AgentError(
                "SOCKET_DIRECTORY",
                f"Directory '{path}'",
                "belongs to somebody else, or others may enter it",
                "Remove it, or set TMPDIR of the executors to a private directory",
            )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold an agent's directory alone, making it if need be."""
    while True:
        try:
            _make_private(directory)
            file = (directory / "lock").open("w")
        except FileNotFoundError:
            # An agent that has ended has just removed it.
            continue
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_same(file.fileno(), directory / "lock"):
                yield
                return


def _is_same(descriptor: int, path: Path) -> bool:
    """Tell whether an open file is still the one of that name."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _sweep(directory: Path) -> None:
    """Remove what agents that were killed have left behind."""
    for other in directory.parent.iterdir():
        if other == directory:
            continue
        try:
            with (other / "lock").open("r+") as file:
                # Whoever holds it is just starting an agent there.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with (other / "alive").open("r+") as mark:
                    fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(other, ignore_errors=True)
        except OSError:
            # Held, or gone already.
            continue


def mark_alive(directory: Path) -> IO[str]:
    """Hold a lock for as long as this process lives; the system lets go of it, whatever happens."""
    file = (directory / "alive").open("w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _start(config: AgentConfig, directory: Path) -> None:
    # The mark may still be held by an agent that is on its way out.
    for name in ("agent.sock", "alive"):
        (directory / name).unlink(missing_ok=True)
    with (directory / "agent.log").open("wb") as log:
        child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "penstock.pubsub.agent", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            # Spark adds to sys.path what was sent with the job; the agent needs it too.
            env={**os.environ, "PYTHONPATH": _python_path()},
            start_new_session=True,
        )
        assert child.stdin is not None  # noqa: S101 - asked for
        assert child.stdout is not None  # noqa: S101 - asked for
        # The agent detaches itself from the child, but stays in its session.
        timer = threading.Timer(_START_SECONDS, os.killpg, (child.pid, signal.SIGKILL))
        timer.start()
        try:
            with suppress(BrokenPipeError):
                child.stdin.write(config.to_json().encode())
                child.stdin.close()
            # The agent detaches itself; its end of the pipe stays open until it is ready or dead.
            answer = child.stdout.read()
        finally:
            timer.cancel()
            child.stdout.close()
            child.wait()
    if answer.strip() != b"ready":
        words = log_tail(directory)
        # Under the lock, which other tasks see to be gone and make anew.
        shutil.rmtree(directory, ignore_errors=True)
        raise AgentError(
            "AGENT_START",
            f"The Pub/Sub agent of executor process {config.parent}",
            "did not start",
            f"Its last words:\n{words}",
        )


def _python_path() -> str:
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)


def log_tail(directory: Path) -> str:
    """Give the end of an agent's log."""
    try:
        text = (directory / "agent.log").read_bytes()
    except OSError:
        return "(no log)"
    return text[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() or "(an empty log)"
