"""The emulator's server: one HTTPS port for SQL, Snowpipe Streaming and the control interface."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.emulator.snowflake.admin import ADMIN_PATH, Admin
from penstock.emulator.snowflake.certificates import Identity
from penstock.emulator.snowflake.channels import Channels
from penstock.emulator.snowflake.database import Database
from penstock.emulator.snowflake.errors import RefusedError
from penstock.emulator.snowflake.faults import FaultPlan
from penstock.emulator.snowflake.sql import Sql
from penstock.emulator.snowflake.statements import Statements
from penstock.emulator.snowflake.streaming import Streaming, route
from penstock.emulator.snowflake.users import Users
from penstock.errors import ConnectError

_LOGGER = logging.getLogger(__name__)
ACCOUNT = "PENSTOCK"
USER = "PENSTOCK"
DATABASE = "PENSTOCK"

_SQL = {
    ("POST", "/session/v1/login-request"): "login",
    ("POST", "/queries/v1/query-request"): "query",
    ("POST", "/session"): "session",
    ("POST", "/session/heartbeat"): "session",
}
# What the connector sends on its way and nobody needs an answer to.
_IGNORED = {"/queries/v1/abort-request", "/telemetry/send", "/session/logout-request"}


class SnowflakeServer:
    """One emulator. `start` and `stop` belong to the event loop that serves it."""

    def __init__(self, identity: Identity, directory: Path | None = None) -> None:
        self._identity = identity
        self.faults = FaultPlan()
        self.database = Database(directory)
        self.users = Users(self.database, ACCOUNT, identity.secret())
        self.statements = Statements(self.database, self.users)
        self.channels = Channels(self.database, self.faults)
        self.sql = Sql(self.database, self.users, self.statements)
        self.streaming = Streaming(self.database, self.users, self.channels)
        self.calls: dict[str, int] = {}
        self.admin = Admin(self)
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        if DATABASE not in self.database.names():
            self.database.create(DATABASE)
        if not self.users.exists(USER):
            self.users.create(USER)
            self.users.set_key(USER, "RSA_PUBLIC_KEY", identity.public_key_file.read_text())

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address. Port 0 takes a free one."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host.strip("[]"), port))
        except OSError as exc:
            listener.close()
            raise ConnectError(
                "EMULATOR_PORT",
                f"Address {host}:{port}",
                f"cannot be listened on: {exc.strerror or exc}",
                "Choose another --port (0 takes a free one), or stop the other program",
            ) from None
        config = uvicorn.Config(
            self,
            ssl_certfile=str(self._identity.server_file),
            ssl_keyfile=str(self._identity.server_file),
            log_config=None,
            access_log=False,
            lifespan="off",
            # Clients keep connections for longer than uvicorn's 5 seconds; a request that meets
            # one just being closed would fail.
            timeout_keep_alive=600,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        self._server = server
        # Not `serve`: it would take the signals, which are the caller's.
        self._serving = asyncio.create_task(server._serve([listener]))  # noqa: SLF001
        while not server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.01)
        self.statements.tasks.start()
        return host, int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Stop serving, and let the database go."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        await asyncio.to_thread(self.statements.tasks.stop)
        await asyncio.to_thread(self.sql.close)
        self.database.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request (the ASGI application)."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._respond(request)
        if response is None:
            _cut(send)
            return
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response | None:
        """Give the answer, or None if the connection shall be cut."""
        try:
            return await self._dispatch(request)
        except RefusedError as exc:
            return _refused(exc.status, exc.code, exc.message)
        except Exception as exc:  # the top of a request: one bad one must not take others with it
            _LOGGER.exception("a request failed by a mistake of the emulator")
            return _refused(500, "EMULATOR_ERROR", f"emulator error: {exc!r}")

    async def _dispatch(self, request: Request) -> Response | None:
        path = request.url.path
        if path.startswith(ADMIN_PATH):
            return await self.admin.serve(request, path.removeprefix(ADMIN_PATH))
        if (request.method, path) in _SQL:
            name = _SQL[(request.method, path)]
            return await self._struck(name, "", lambda: getattr(self.sql, name)(request))
        if path in _IGNORED:
            return JSONResponse({"success": True, "data": None, "code": None})
        found = route(request.method, request.scope["raw_path"])
        if found is None:
            raise RefusedError(404, "NOT_FOUND", f"there is nothing at {path}")
        name, names = found
        channel = names[3] if len(names) > 3 else ""
        endpoint = getattr(self.streaming, name)
        return await self._struck(name, channel, lambda: endpoint(request, names))

    async def _struck(
        self, name: str, channel: str, serve: Callable[[], Awaitable[Response]]
    ) -> Response | None:
        """Count a request and serve it, with the faults that strike it."""
        self.calls[name] = self.calls.get(name, 0) + 1
        if fault := self.faults.draw("latency", name, channel):
            await asyncio.sleep(fault.seconds)
        if self.faults.draw("drop", name, channel):
            return None
        if fault := self.faults.draw("error", name, channel):
            raise RefusedError(fault.status, fault.code, fault.message)
        response = await serve()
        if self.faults.draw("lose_response", name, channel):
            return None
        return response


def _cut(send: Any) -> None:
    """Cut the connection of a request, without an answer."""
    # uvicorn's `send` is a method of its request, which knows the transport.
    send.__self__.transport.abort()


def _refused(status: int, code: str, message: str) -> Response:
    content = {"code": code, "error_code": code, "message": message, "success": False, "data": None}
    return JSONResponse(content, status_code=status)


def _quieten() -> None:
    # DuckDB advises against the way in which fakesnow takes its results.
    warnings.filterwarnings("ignore", message="Arrow output on a DB-API result")


def serve(
    host: str,
    port: int,
    identity: Identity,
    directory: Path | None,
    *,
    on_ready: Callable[[str, int], None],
) -> None:
    """Run an emulator in this process until SIGINT or SIGTERM; `on_ready` gets its address."""
    _quieten()

    async def run() -> None:
        identity.make(host)
        server = SnowflakeServer(identity, directory)
        address = await server.start(host, port)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        on_ready(*address)
        await stopped.wait()
        await server.stop()

    asyncio.run(run())


def _main() -> None:
    """Serve for a parent process: print the port, end when standard input ends."""
    host, port, identity, directory = sys.argv[1:]
    _quieten()

    async def run() -> None:
        # Ctrl-C goes to the parent's whole group; the parent decides when this ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        files = Identity(Path(identity))
        files.make(host)
        server = SnowflakeServer(files, Path(directory) if directory else None)
        _, bound = await server.start(host, int(port))
        sys.stdout.write(f"{bound}\n")
        sys.stdout.flush()
        # The parent holds the other end: however it dies, the emulator does not outlive it.
        await asyncio.to_thread(sys.stdin.buffer.read)
        await server.stop()

    asyncio.run(run())


if __name__ == "__main__":
    _main()
