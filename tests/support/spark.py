"""Spark sessions for tests, and waiting for what they do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

# For JVMs that live for minutes and share few cores: start fast, and do little on the side.
JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@contextmanager
def spark_session(master: str = "local[2, 4]", **settings: str) -> Iterator[SparkSession]:
    """Run a session, and end its JVM with it. Like a cluster, it tries a task four times."""
    from penstock._core.java import ensure_java

    ensure_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(master)
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", JVM_OPTIONS)
        .config("spark.executor.extraJavaOptions", JVM_OPTIONS)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    gateway = session.sparkContext._gateway
    try:
        yield session
    finally:
        session.stop()
        _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    from pyspark import SparkContext

    gateway.shutdown()
    # The JVM ends by itself when its standard input closes.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=30)
    SparkContext._gateway = None
    SparkContext._jvm = None


def wait_until(
    condition: Callable[[], Any],
    seconds: float = 60.0,
    state: Callable[[], Any] | None = None,
) -> Any:
    """Wait for a condition to become true, and give what it gave; on timeout show the state."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            shown = state() if state else value
            raise AssertionError(f"not true within {seconds:g}s; state: {shown!r}")
        time.sleep(0.05)
