"""The Snowflake emulator for tests: a child process, asked over its control interface.

Runs in the test's process.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.emulator.snowflake.admin import ADMIN_PATH
from penstock.emulator.snowflake.certificates import Identity
from penstock.emulator.snowflake.faults import SnowflakeFault
from penstock.emulator.snowflake.server import ACCOUNT, DATABASE, USER
from penstock.emulator.snowflake.streaming import ROW_MODE_PROPERTIES
from penstock.errors import ConnectError

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

_START_SECONDS = 60.0
_CALL_SECONDS = 60.0
# The SDK (rustls) reads the first, the connector (requests) the second.
_ENVIRONMENT = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")

__all__ = ["SnowflakeEmulator", "SnowflakeFault", "snowflake_emulator"]


class SnowflakeEmulator:
    """A running emulator with one user, one database and its schema PUBLIC.

    Attributes:
        host, port: where it listens, with TLS.
        account, user, role, warehouse, database, schema: what to connect with.
        private_key_file: the user's key, PKCS#8 in PEM, not encrypted.
        ca_file: the authorities to trust: the emulator's own, and the usual ones.
    """

    account = ACCOUNT
    user = USER
    role = "SYSADMIN"
    warehouse = "PENSTOCK"
    database = DATABASE
    schema = "PUBLIC"

    def __init__(self, identity: Identity, host: str, port: int, directory: Path | None) -> None:
        self._identity = identity
        self.host = host
        self.port = port
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self.ca_file = identity.ca_file
        self.private_key_file = identity.private_key_file

    def private_key(self) -> str:
        """Give the user's key as PEM text."""
        return self.private_key_file.read_text()

    def connect(self, **options: Any) -> SnowflakeConnection:
        """Connect with snowflake-connector-python."""
        import snowflake.connector
        from cryptography.hazmat.primitives import serialization

        key = serialization.load_pem_private_key(self.private_key_file.read_bytes(), None)
        known: dict[str, Any] = {
            **self.connection_options(),
            "user": self.user,
            "private_key": key.private_bytes(
                serialization.Encoding.DER,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            "role": self.role,
            "warehouse": self.warehouse,
            "database": self.database,
            "schema": self.schema,
        }
        return snowflake.connector.connect(**(known | options))

    def connection_options(self) -> dict[str, Any]:
        """Give what leads the connector to this emulator."""
        return {
            "account": self.account,
            "host": self.host,
            "port": self.port,
            "protocol": "https",
        }

    def client_properties(self) -> dict[str, Any]:
        """Give the properties that lead the SDK to this emulator, with the user's key."""
        return {
            "account": self.account,
            "user": self.user,
            "role": self.role,
            "private_key": self.private_key(),
            "host": self.host,
            "port": self.port,
            "scheme": "https",
            "ssl": "on",
            **ROW_MODE_PROPERTIES,
        }

    def sink_options(self) -> dict[str, str]:
        """Give the options that lead `format("snowpipe")` to this emulator; all but the table."""
        return {
            "account": self.account,
            "user": self.user,
            "role": self.role,
            "warehouse": self.warehouse,
            "database": self.database,
            "host": self.host,
            "port": str(self.port),
            "privateKeyFile": str(self.private_key_file),
            "sdkProperties": ", ".join(f"{k}={v}" for k, v in ROW_MODE_PROPERTIES.items()),
        }

    def inject(self, fault: SnowflakeFault) -> None:
        """Put a fault in force."""
        self._call("inject", **fault.to_json())

    def clear_faults(self) -> None:
        """Take all faults back."""
        self._call("clear_faults")

    def set_public_key(self, user: str, key: str | None, slot: str = "RSA_PUBLIC_KEY") -> None:
        """Set (PEM or its base64) or unset (None) one of a user's two public keys."""
        self._call("set_key", user=user, slot=slot, key=key)

    def calls(self) -> dict[str, int]:
        """Count the requests of each endpoint, append_rows or query for example."""
        return dict(self._call("stats")["calls"])

    def faults_struck(self) -> dict[str, int]:
        """Count the faults that struck, by kind."""
        return dict(self._call("stats")["faults"])

    def sessions(self) -> int:
        """Count the sessions of the connector that are open."""
        return int(self._call("stats")["sessions"])

    def channels(self) -> dict[str, dict[str, Any]]:
        """Give the status of each channel that exists, by its name."""
        return {channel["channel_name"]: channel for channel in self._call("stats")["channels"]}

    def warehouse_statements(self) -> int:
        """Count the statements that would have woken a warehouse."""
        return int(self._call("stats")["warehouse_statements"])

    def run_task(
        self, name: str, *, database: str | None = None, schema: str | None = None
    ) -> dict[str, Any]:
        """Run a task at once, whatever its schedule, and wait for it; returns its run.

        A run has `name`, `state` (SUCCEEDED, FAILED or SKIPPED), `started` and `completed` (seconds
        since 1970), `error_code` and `error_message`.
        """
        where = {"database": database or self.database, "schema": schema or self.schema}
        return dict(self._call("run_task", name=name, **where))

    def task_history(self) -> list[dict[str, Any]]:
        """Give the runs of all tasks since the emulator was started, the oldest first."""
        return list(self._call("task_history")["runs"])

    def pid(self) -> int:
        """Give the id of the process that serves."""
        return int(self._call("stats")["pid"])

    def start(self) -> None:
        """Start the process; after `kill` or `stop`, on the same port again."""
        directory = str(self._directory) if self._directory is not None else ""
        command = [
            sys.executable, "-m", "penstock.emulator.snowflake.server",
            self.host, str(self.port), str(self._identity.directory), directory,
        ]  # fmt: skip
        # A file takes any amount of log; a pipe that nobody reads would stop the child.
        child = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        assert child.stdout is not None  # noqa: S101 - it was asked for
        self._child = child
        # A child that dies ends the read below; one that hangs is ended by the timer.
        timer = threading.Timer(_START_SECONDS, child.kill)
        timer.start()
        try:
            bound = child.stdout.readline().decode().strip()
        finally:
            timer.cancel()
        if not bound:
            self.stop()
            raise ConnectError(
                "EMULATOR_START",
                f"The Snowflake emulator on {self.host}:{self.port}",
                f"did not start: {_last_line(self._log) or 'no message'}",
                "Choose another port (0 takes a free one), or see the message",
            )
        self.port = int(bound)

    def stop(self) -> None:
        """End the process; it writes its files first."""
        child, self._child = self._child, None
        if child is None:
            return
        # Closing its standard input ends it.
        try:
            child.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()

    def kill(self) -> None:
        """End the process as a power cut would (SIGKILL)."""
        if self._child is not None:
            self._child.kill()
        self.stop()

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        self._log.close()

    def _call(self, name: str, /, **request: Any) -> Any:
        call = urllib.request.Request(
            f"https://{self.host}:{self.port}{ADMIN_PATH}{name}",
            data=json.dumps(request).encode(),
            method="POST",
        )
        context = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(call, timeout=_CALL_SECONDS, context=context) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as exc:
            with exc:
                raise ValueError(json.load(exc)["message"]) from None


@contextlib.contextmanager
def snowflake_emulator(
    *, port: int = 0, directory: str | Path | None = None
) -> Iterator[SnowflakeEmulator]:
    """Run an emulator, trusted by this process and its children, for the length of a `with` block.

    SSL_CERT_FILE and REQUESTS_CA_BUNDLE name its certificate authority, beside the usual ones.

    Args:
        port: port to listen on; 0 takes a free one.
        directory: where databases shall be kept; without one they are in memory.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-snowflake-") as own:
        identity = Identity(Path(own) / "identity")
        kept = Path(directory) if directory is not None else None
        emulator = SnowflakeEmulator(identity, "localhost", port, kept)
        before = {name: os.environ.get(name) for name in _ENVIRONMENT}
        try:
            emulator.start()
            os.environ.update(dict.fromkeys(_ENVIRONMENT, str(identity.ca_file)))
            yield emulator
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            emulator.close()


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
