"""The SDK's log lines, which it writes to standard output, become log records; in workers.

The SDK is native code: only the file descriptor can be turned. What others write to standard
output goes on to where it went before.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading

_log = logging.getLogger("penstock.snowflake.sdk")
_LINE = re.compile(rb"\S+Z \| (?P<level>[A-Z]+) +\| (?P<text>.*)", re.DOTALL)
_LEVELS = {b"ERROR": logging.ERROR, b"WARN": logging.WARNING, b"INFO": logging.INFO}
# Of no interest: a task opens its channel anew for each batch, when all of the last is committed.
_EXPECTED = b"An acknowledgement callback was already registered"
# Addresses of requests carry ids of no use; keys and tokens are never in these lines.
_LOCK = threading.Lock()
_is_captured = False


def capture_sdk_log() -> None:
    """Turn the SDK's lines into log records from now on; once in each process."""
    global _is_captured  # noqa: PLW0603 - there is one standard output
    with _LOCK:
        if _is_captured:
            return
        _is_captured = True
        os.environ.setdefault("SS_LOG_LEVEL", "warn")
        sys.stdout.flush()
        kept = os.dup(1)
        source, sink = os.pipe()
        os.dup2(sink, 1)
        os.close(sink)
        reader = threading.Thread(
            target=_pass_on, args=(source, kept), name="penstock-sdk-log", daemon=True
        )
        reader.start()
        atexit.register(_restore, kept, reader)


def _restore(kept: int, reader: threading.Thread) -> None:
    sys.stdout.flush()
    # Closes the pipe's last writing end, so the reader comes to the end of what was written.
    os.dup2(kept, 1)
    reader.join(timeout=2.0)


def _pass_on(source: int, kept: int) -> None:
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            match = _LINE.match(line)
            if match is None:
                os.write(kept, line)
                continue
            level = _LEVELS.get(match["level"], logging.DEBUG)
            if match["text"].startswith(_EXPECTED):
                level = logging.DEBUG
            _log.log(level, "%s", match["text"].decode(errors="replace").rstrip())
