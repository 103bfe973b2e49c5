"""Keeps a query running: starts its driver, and starts again what has died or failed."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from chaos.workplace import Workplace

# A session with its executors takes half a minute to start on a busy machine.
_START_SECONDS = 180.0
# Longer than Spark takes to stop a query in the middle of a batch.
_ANSWER_SECONDS = 90.0
_END_SECONDS = 40.0
_LOOK_SECONDS = 0.5
_ERROR_LINES = 40


class DriverGoneError(Exception):
    """The driver has died."""


class DriverHangsError(Exception):
    """The driver lives and does not answer."""


class Driver:
    """The program `chaos.driver`, running. For one thread at a time."""

    def __init__(self, place: Workplace, plan: dict[str, Any], number: int) -> None:
        with (place.logs / f"driver-{number}.log").open("wb") as log:
            self._child = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "chaos.driver", json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=place.environment(),
                cwd=place.root,
                # Ctrl-C is for us; we end the driver.
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="driver-answers", daemon=True).start()

    def _read(self) -> None:
        out = self._child.stdout
        assert out is not None  # noqa: S101 - it is a pipe
        with out, contextlib.suppress(ValueError):
            for line in out:
                self._answers.put(line)
        # The end of the pipe: it is gone.
        self._answers.put("")

    def ask(self, command: str, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Give a command, and get its answer.

        Raises:
            DriverGoneError: there is nobody to answer.
            DriverHangsError: the time is up.
        """
        if self._child.stdin is None:
            raise DriverGoneError
        try:
            self._child.stdin.write(command + "\n")
            self._child.stdin.flush()
            answer = self._answers.get(timeout=seconds)
        except (OSError, ValueError):
            raise DriverGoneError from None
        except queue.Empty:
            raise DriverHangsError(command) from None
        if not answer:
            raise DriverGoneError
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def end(self) -> bool:
        """End it in order; False if it had to be killed."""
        self._close()
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()
        self._child.wait()
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self._child.stdin is not None:
                self._child.stdin.close()


@dataclass
class Restarts:
    """How often something had to be started again, and why."""

    drivers: int = 0
    failed_queries: int = 0
    hangs: int = 0


class Supervisor:
    """A thread that looks after the driver and its query."""

    def __init__(self, place: Workplace, plan: dict[str, Any]) -> None:
        self._place = place
        self._plan = plan
        self._driver: Driver | None = None
        self._started = 0
        # Protects the driver: one question at a time.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._failure_of_start: Exception | None = None
        self.restarts = Restarts()
        self.state: dict[str, Any] = {}

    @property
    def is_active(self) -> bool:
        """Whether the query ran when it was last looked at."""
        return bool(self.state.get("is_active"))

    def start(self) -> None:
        """Begin to look after the query."""
        self._thread.start()

    def stop_query(self) -> bool:
        """Stop the query in order; it is started again by and by. False if there was none."""
        return self._ask("stop")

    def finish(self) -> bool:
        """Stop the query and the driver in order, for good; False if one of them did not stop."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        is_stopped = self._ask("stop")
        return self._driver is not None and self._driver.end() and is_stopped

    def kill(self) -> None:
        """End everything at once; for a run that is broken off."""
        self._stopped.set()
        if self._driver is not None:
            self._driver.kill()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            if self._driver is None:
                self._start_driver()
            if self._ask("state") and not self.is_active and not self._stopped.is_set():
                if self.state["error"]:
                    self.restarts.failed_queries += 1
                    self._note(self.state["error"])
                self._ask("start")

    def _start_driver(self) -> None:
        if self._started:
            self.restarts.drivers += 1
        self._started += 1
        with self._lock:
            self._driver = Driver(self._place, self._plan, self._started)
        self._ask("state", _START_SECONDS)

    def _ask(self, command: str, seconds: float = _ANSWER_SECONDS) -> bool:
        with self._lock:
            if self._driver is None:
                return False
            try:
                self.state = self._driver.ask(command, seconds)
            except DriverGoneError:
                self._driver.kill()
            except DriverHangsError:
                self.restarts.hangs += 1
                self._note(f"the driver has not answered '{command}' for {seconds:g} s")
                self._driver.kill()
            else:
                return True
            self.state = {}
            self._driver = None
            return False

    def _note(self, text: str) -> None:
        lines = text.strip().splitlines()[:_ERROR_LINES]
        with (self._place.logs / "errors.log").open("a") as log:
            log.write("\n".join([time.strftime("%H:%M:%S"), *lines, "", ""]))
