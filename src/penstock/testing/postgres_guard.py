"""Keeps the embedded PostgreSQL: starts it, stops it, and clears up when its user has gone.

Runs as a process of its own, as a script by its path, so that it starts in no time and lives on
when the test's process is killed. It is told what to do in lines of JSON on standard input; the
end of that input, however it came about, ends the server and removes its directory. Imports
nothing but the standard library, and nothing of Penstock.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02
# PostgreSQL refuses to run as root, so root lends it this account, which every system has.
_UNPRIVILEGED = "nobody"
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class GuardError(Exception):
    """The server could not be made or started; the text says why."""


class Guard:
    """One server and its directory."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._install = Path(plan["install"])
        self._password: str = plan["password"]
        self._is_kept = plan["directory"] is not None
        self._account = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None
        self._directory = Path(plan["directory"] or tempfile.mkdtemp(prefix="penstock-postgres-"))
        self._cluster = self._directory / "cluster"
        self._log = self._directory / "server.log"
        self._port = _free_port()
        self._server: subprocess.Popen[bytes] | None = None

    def make(self) -> dict[str, Any]:
        """Make the cluster, unless the directory has one already."""
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._account is not None:
            self._open_to_the_account()
        stored = self._directory / "password"
        if self._cluster.is_dir():
            self._password = stored.read_text()
            return self._answer()
        self._cluster.mkdir(mode=0o700)
        stored.touch(mode=0o600)
        stored.write_text(self._password)
        if self._account is not None:
            for path in (self._cluster, stored):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        done = subprocess.run(  # noqa: S603 - the binary of the wheel
            [
                self._install / "bin" / "initdb",
                f"--pgdata={self._cluster}",
                "--username=postgres",
                f"--pwfile={stored}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ],
            capture_output=True,
            check=False,
            **self._as_account(),
        )
        if done.returncode:
            shutil.rmtree(self._cluster, ignore_errors=True)
            raise GuardError(f"initdb failed: {done.stderr.decode(errors='replace').strip()}")
        return self._answer()

    def start(self, settings: dict[str, str]) -> dict[str, Any]:
        """Start the server and wait until it takes connections."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._start_once(settings, deadline):
            failure = self._log.read_text(errors="replace")[-2000:]
            # Backends of a killed server hold its memory until they notice that it is gone.
            passing = "still in use" in failure or "lock file" in failure
            if "Address already in use" in failure:
                self._port, passing = _free_port(), True
            if not passing or time.monotonic() > deadline:
                raise GuardError(f"it did not start: {failure}")
            time.sleep(5 * _POLL_SECONDS)
        return self._answer()

    def stop(self, mode: str) -> dict[str, Any]:
        """Stop the server: smart, fast or immediate; or kill it."""
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(signal.SIGKILL if mode == "kill" else _SIGNALS[mode])
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
                raise GuardError(
                    f"it did not stop in {_STOP_SECONDS:g} s, and was killed"
                ) from None
        return self._answer()

    def end(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(GuardError):
            self.stop("fast" if self._is_kept else "immediate")
        for _ in range(0 if self._is_kept else 50):
            # The last backends may still write for a moment after their server.
            shutil.rmtree(self._directory, ignore_errors=True)
            if not self._directory.exists():
                break
            time.sleep(_POLL_SECONDS)

    def _start_once(self, settings: dict[str, str], deadline: float) -> bool:
        fixed = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",
        }
        arguments = [f"--{name}={value}" for name, value in {**settings, **fixed}.items()]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(  # noqa: S603 - the binary of the wheel
                [self._install / "bin" / "postgres", "-D", self._cluster, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_account(),
            )
        while self._server.poll() is None:
            if self._is_ready():
                return True
            if time.monotonic() > deadline:
                self._server.kill()
            time.sleep(_POLL_SECONDS)
        self._server = None
        return False

    def _is_ready(self) -> bool:
        # Line 1 of this file is the process, line 8 its state; the file of a killed server stays.
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        assert self._server is not None  # noqa: S101 - it was just started
        return len(lines) >= 8 and lines[0] == str(self._server.pid) and lines[7].strip() == "ready"

    def _answer(self) -> dict[str, Any]:
        return {
            "directory": str(self._directory),
            "install": str(self._install),
            "password": self._password,
            "port": self._port,
            "pid": None if self._server is None else self._server.pid,
        }

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {"cwd": self._directory}
        ids = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return {"cwd": self._directory, **ids}

    def _open_to_the_account(self) -> None:
        self._directory.chmod(0o755)
        closed = _closed_ancestor(self._directory)
        if closed is not None:
            raise GuardError(
                f"the account '{_UNPRIVILEGED}', which runs it for root, may not enter {closed}"
            )
        if _closed_ancestor(self._install / "bin") is not None:
            # A private environment, in /root for example: a copy is readable to the account.
            self._install = self._copy_install()

    def _copy_install(self) -> Path:
        # Its libraries are beside the package, and found from the programs' own place.
        package = self._install.parent
        copy = self._directory / "install"
        target = copy / package.name / self._install.name
        if not copy.is_dir():
            shutil.copytree(self._install, target, ignore=shutil.ignore_patterns("include"))
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, copy / libraries.name)
        return target


def _closed_ancestor(path: Path) -> Path | None:
    for ancestor in (path, *path.parents):
        if not ancestor.stat().st_mode & stat.S_IXOTH:
            return ancestor
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _obey(guard: Guard, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "make":
        return guard.make()
    if request["do"] == "start":
        return guard.start(request["settings"])
    return guard.stop(request["mode"])


def _serve() -> None:
    # Whoever ends this process as well must not keep it from clearing up.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    guard = Guard(json.loads(sys.stdin.readline()))
    try:
        for line in sys.stdin:
            try:
                answer = _obey(guard, json.loads(line))
            except (GuardError, OSError) as exc:
                answer = {"error": str(exc)}
            # The user may be gone by now: then the end of the input comes next.
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
    finally:
        guard.end()


if __name__ == "__main__":
    _serve()
