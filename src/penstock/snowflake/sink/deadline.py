"""Calls of the SDK with an end: it has none of its own and may retry for minutes; in workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import ConnectError

Value = TypeVar("Value")


def within(seconds: float, subject: str, call: Callable[[], Value]) -> Value:
    """Give what a call gives, if it does so in time.

    Raises:
        ConnectError: it did not. The call goes on in its thread, and what it gives is lost.
    """
    results: list[Value] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as exc:
            # Whatever it is, it is raised again in the caller's thread.
            failures.append(exc)

    thread = threading.Thread(target=run, name="penstock-snowpipe-call", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if failures:
        raise failures[0]
    if results:
        return results[0]
    raise ConnectError(
        "SNOWPIPE_TIMEOUT",
        subject,
        f"no answer within {seconds:.0f} s",
        "Check options 'account', 'host' and 'port' and the network of the executors; the task is "
        "run again",
    )
