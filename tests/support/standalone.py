"""A standalone Spark cluster on this machine: a Master and Workers, each a process of its own.

Workers come and go while an application runs, as machines do. Each has an address of its own from
127.0.0.0/8, so that Spark takes it for another machine. Everything runs below one directory and
carries its name in the environment; by that name nothing of it stays.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.support.source import is_running
from tests.support.spark import JVM_OPTIONS, wait_until

# In the environment of each process of a cluster, also of executors and agents.
MARK = "PENSTOCK_TEST_CLUSTER"
# Where Spark itself looks for the address to bind; executors and agents have it from their worker.
ADDRESS = "SPARK_LOCAL_IP"
# The least with which Spark starts an executor is 450 MiB.
EXECUTOR_MEMORY = "512m"
_START_SECONDS = 60.0
_END_SECONDS = 20.0


class Node:
    """A Master or a Worker, running."""

    def __init__(self, directory: Path, name: str, address: str, *arguments: str) -> None:
        self.address = address
        self._log = directory / f"{name}.log"
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            MARK: str(directory),
            ADDRESS: address,
            "TMPDIR": str(directory / "tmp"),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(directory),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LAUNCHER_OPTS": _java_options(directory),
            # Its server for submissions would take a fixed port.
            "SPARK_DAEMON_JAVA_OPTS": f"{_java_options(directory)} "
            "-Dspark.master.rest.enabled=false",
            # Executors have to find what the test finds.
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        command = [str(home / "bin" / "spark-class"), *arguments]
        with self._log.open("wb") as log:
            # The script becomes the JVM: both have one id.
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self.process = psutil.Process(self._child.pid)

    def find(self, pattern: str) -> str | None:
        """Look for a pattern in the log; gives its group."""
        assert self._child.poll() is None, f"a node has not started; its log: {self.log_tail()}"
        found = re.search(pattern, self._log.read_text(errors="replace"))
        return found.group(1) if found else None

    def wait_log(self, pattern: str) -> str:
        """Wait until a pattern is in the log; gives its group."""
        found: str = wait_until(lambda: self.find(pattern), _START_SECONDS, self.log_tail)
        return found

    def log_tail(self) -> str:
        """Give the end of the log."""
        return self._log.read_text(errors="replace")[-3000:]

    def executors(self) -> list[psutil.Process]:
        """Find the executors of this worker."""
        return _below(self.process, "CoarseGrainedExecutorBackend")

    def daemons(self) -> set[int]:
        """Find the Python daemons of this worker's executors: the `home` of their rows."""
        executors = self.executors()
        return {
            child.pid
            for executor in executors
            for child in _below(executor, "pyspark.daemon", is_recursive=False)
        }

    def terminate(self) -> None:
        """End it by SIGTERM, as an operator does; returns when the process is gone."""
        self._child.terminate()
        self._child.wait(_END_SECONDS)

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self._child.kill()
        self._child.wait()


class Standalone:
    """A master and its workers; made by `standalone`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._addresses = (f"127.0.0.{number}" for number in itertools.count(1))
        self.workers: list[Node] = []
        self._master = Node(
            directory,
            "master",
            "127.0.0.1",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
        )
        self.url = ""
        self._page_port = 0

    def wait_ready(self) -> None:
        """Wait until the master has told where it listens."""
        self.url = self._master.wait_log(r"Starting Spark master at (spark://\S+)")
        self._page_port = int(self._master.wait_log(r"service 'MasterUI' on port (\d+)"))

    def settings(self) -> dict[str, str]:
        """Give what an application needs to run here."""
        return {
            "spark.master": self.url,
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": _java_options(self._directory),
            "spark.driver.extraJavaOptions": _java_options(self._directory),
        }

    def page(self) -> dict[str, Any]:
        """Read the master's page as it is for programs."""
        connection = http.client.HTTPConnection("127.0.0.1", self._page_port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/json/")
            page: dict[str, Any] = json.loads(connection.getresponse().read())
        return page

    def alive(self) -> set[str]:
        """Give the addresses of the workers that the master can use."""
        return {one["host"] for one in self.page()["workers"] if one["state"] == "ALIVE"}

    def resize(self, count: int) -> None:
        """Start workers, or end the newest ones, until there are so many."""
        while len(self.workers) > count:
            self.end(self.workers[-1])
        new = []
        for _ in range(count - len(self.workers)):
            address = next(self._addresses)
            worker = Node(
                self._directory,
                f"worker-{address}",
                address,
                "org.apache.spark.deploy.worker.Worker",
                *("--host", address, "--webui-port", "0"),
                *("--cores", "1", "--memory", EXECUTOR_MEMORY),
                *("--work-dir", str(self._directory / address), self.url),
            )
            self.workers.append(worker)
            new.append(worker)
        for worker in new:
            worker.wait_log("(Successfully registered with master)")
        addresses = {worker.address for worker in self.workers}
        wait_until(lambda: self.alive() == addresses, _START_SECONDS, self.state)

    def end(self, worker: Node) -> None:
        """End one worker; its executors must end with it."""
        executors = worker.executors()
        self.workers.remove(worker)
        worker.terminate()
        wait_until(lambda: not any(map(is_running, executors)), _END_SECONDS, lambda: executors)
        wait_until(lambda: worker.address not in self.alive(), _END_SECONDS, self.state)
        # An executor that was being started at that moment may live on without its worker; a
        # machine that goes takes it along.
        for process in psutil.process_iter():
            if _is_of(process, self._directory) and address_of(process) == worker.address:
                with contextlib.suppress(psutil.Error):
                    if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                        process.kill()

    def state(self) -> Any:
        """What a test shows when it waits in vain."""
        return {"page": self.page(), "logs": [worker.log_tail() for worker in self.workers]}

    def kill(self) -> None:
        """End everything that was started for this cluster, whoever started it."""
        for node in [*self.workers, self._master]:
            node.kill()
        # Executors and agents notice, but nobody shall have to wait for that.
        left = [one for one in psutil.process_iter() if _is_of(one, self._directory)]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=_END_SECONDS)


def _java_options(directory: Path) -> str:
    return f"{JVM_OPTIONS} -Djava.io.tmpdir={directory / 'tmp'}"


def address_of(process: psutil.Process) -> str:
    """Give the address of the worker that a process belongs to; empty if the process is gone."""
    try:
        return process.environ().get(ADDRESS, "")
    except psutil.Error:
        return ""


def _below(
    process: psutil.Process, word: str, *, is_recursive: bool = True
) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.Error):
        for child in process.children(recursive=is_recursive):
            with contextlib.suppress(psutil.Error):
                if any(word in part for part in child.cmdline()):
                    found.append(child)
    return found


def _is_of(process: psutil.Process, directory: Path) -> bool:
    try:
        return process.environ().get(MARK) == str(directory)
    except (psutil.Error, OSError):
        return False


@contextmanager
def standalone() -> Iterator[Standalone]:
    """Run a cluster that has no workers yet; whatever happens, nothing of it stays."""
    from penstock._core.java import ensure_java

    ensure_java()
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-") as name:
        (Path(name) / "tmp").mkdir()
        cluster = Standalone(Path(name))
        try:
            cluster.wait_ready()
            yield cluster
        finally:
            cluster.kill()
