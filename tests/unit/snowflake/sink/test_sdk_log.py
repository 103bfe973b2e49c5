"""The SDK's log lines do not reach standard output; what others print there does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[4] / "src"
PROGRAM = """
import logging, os, sys
logging.basicConfig(
    level=logging.DEBUG, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s"
)
print("before", flush=True)
import penstock.snowflake.sink.sdk
print("after")
os.write(1, b"raw\\n")
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )


def test_lines_of_the_sdk_go_to_the_log() -> None:
    # At INFO the SDK says that it was imported.
    done = run(SS_LOG_LEVEL="info")
    assert sorted(done.stdout.split()) == ["after", "before", "raw"]
    assert "penstock.snowflake.sdk INFO core" in done.stderr


def test_the_sdk_is_quiet_unless_something_is_wrong() -> None:
    environment = {"SS_LOG_LEVEL": ""} if "SS_LOG_LEVEL" in os.environ else {}
    done = run(**environment)
    assert sorted(done.stdout.split()) == ["after", "before", "raw"]
    assert "penstock.snowflake.sdk" not in done.stderr
