"""The demo and the README's example, run as a person runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock._core.java import ensure_java

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "penstock.cli.main", "demo", "--messages", "3000"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for temporary files that others may enter, as /tmp is.

    Root runs PostgreSQL under another account, which pytest's own directories would keep out.
    """
    with tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def environment(place: Path) -> dict[str, str]:
    """An environment whose temporary files can be told from all others."""
    return {**os.environ, "TMPDIR": str(place), "COLUMNS": "100", "NO_COLOR": "1"}


def processes_of(folder: Path) -> list[psutil.Process]:
    """Find the processes, at any depth and of any parent, that were started with this TMPDIR."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def assert_nothing_is_left(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert [path.name for path in folder.iterdir() if path.name.startswith("penstock")] == []


def test_demo_runs_and_its_numbers_add_up(environment: dict[str, str], place: Path) -> None:
    """All orders come back, failures of Pub/Sub included, and nothing is left behind."""
    done = subprocess.run(
        DEMO, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "The numbers add up" in done.stdout
    assert "all 3,000 orders came back, and their sums match" in done.stdout
    assert "3 failures of Pub/Sub were ridden out" in done.stdout
    assert "the copy of the PostgreSQL table is right" in done.stdout
    assert "the table in Snowflake says what PostgreSQL says" in done.stdout
    assert_nothing_is_left(place)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_cleans_up(
    number: signal.Signals, status: int, environment: dict[str, str], place: Path
) -> None:
    """Ended in the middle of a stream, the demo leaves no process and no file."""
    with subprocess.Popen(
        DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            told = ""
            for line in process.stdout:
                told += line
                if "Stream orders into the topic" in line:
                    break
            process.send_signal(number)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == status, told + rest + errors
    assert "Traceback" not in errors
    assert_nothing_is_left(place)


def test_example_of_the_readme_runs(environment: dict[str, str], tmp_path: Path) -> None:
    """The README's example works as it stands, in a directory with nothing in it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    folder = tmp_path / "work"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={**environment, "JAVA_HOME": str(ensure_java()), "PYSPARK_PYTHON": sys.executable},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "only showing top 5 rows" in done.stdout
    assert re.search(r'\{"value":\d+,"timestamp":', done.stdout)
