"""A local Spark that keeps quiet: its log goes to a file, and its JVM ends with the block."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from penstock._core.java import ensure_java

_END_SECONDS = 20.0

# Minutes of work do not repay an optimising compiler; without it Spark is up sooner.
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextlib.contextmanager
def quiet_spark(folder: Path) -> Iterator[SparkSession]:
    """Run Spark on all cores, with everything it writes in `folder`.

    Raises:
        MissingExtraError: there is no Java to run it on.
    """
    ensure_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers need the packages that we have, and a SPARK_HOME of another Spark would mix two.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    builder = (
        SparkSession.builder.master("local[*]")
        .appName("penstock-demo")
        .config("spark.driver.extraJavaOptions", _JVM_OPTIONS)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "scratch"))
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    try:
        with stderr_to(folder / "spark.log"):
            spark = builder.getOrCreate()
        yield spark
    finally:
        _stop()


def _stop() -> None:
    """Stop the session and its JVM, which PySpark would keep until Python ends."""
    context: Any = pyspark.SparkContext
    # After Ctrl-C the JVM may be on its way out and answer with any error.
    with contextlib.suppress(Exception):
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()
    gateway = context._gateway  # noqa: SLF001 - PySpark has no public way to its JVM
    if gateway is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    _end(gateway.proc)
    # A next session starts a JVM of its own.
    context._gateway = context._jvm = None  # noqa: SLF001


def _end(jvm: subprocess.Popen[bytes]) -> None:
    """End the JVM: it does so by itself when its standard input closes."""
    if jvm.stdin is not None:
        jvm.stdin.close()
    try:
        jvm.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


@contextlib.contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Let child processes that start in this block write their standard error to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)
