"""The emulator's control interface: faults, keys, tasks and counters, as JSON over HTTPS.

Served beside the rest on the same port, so that a test in any process can use it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import snowflake.connector.errors
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.emulator.snowflake.errors import RefusedError
from penstock.emulator.snowflake.faults import SnowflakeFault
from penstock.emulator.snowflake.tasks import history_rows
from penstock.emulator.snowflake.users import PublicKeyError

if TYPE_CHECKING:
    from penstock.emulator.snowflake.server import SnowflakeServer

ADMIN_PATH = "/penstock-emulator/"


class Admin:
    """Methods take and give JSON objects."""

    def __init__(self, server: SnowflakeServer) -> None:
        self._server = server

    def inject(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put a fault in force."""
        self._server.faults.add(SnowflakeFault(**request))
        return {}

    def clear_faults(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - a method
        """Take all faults back."""
        self._server.faults.clear()
        return {}

    def set_key(self, request: dict[str, Any]) -> dict[str, Any]:
        """Set or unset a public key of a user, who is created if need be."""
        user = str(request["user"])
        self._server.users.create(user)
        self._server.users.set_key(user, str(request["slot"]), request["key"])
        return {}

    def run_task(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a task at once, and wait for it; returns its run."""
        where = (str(request["database"]), str(request["schema"]), str(request["name"]))
        try:
            self._server.statements.tasks.run_now(where)
        except snowflake.connector.errors.Error as exc:
            raise RefusedError(404, "NOT_FOUND", str(exc.msg)) from None
        return history_rows(self._server.statements.tasks.history)[-1]

    def task_history(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - a method
        """Give what became of the tasks, the oldest run first."""
        return {"runs": history_rows(self._server.statements.tasks.history)}

    def stats(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - a method
        """Count requests, faults, sessions and channels; name the process."""
        server = self._server
        return {
            "calls": server.calls,
            "faults": server.faults.struck,
            "sessions": len(server.sql.sessions),
            "channels": server.channels.all(),
            "warehouse_statements": server.statements.warehouse_statements,
            "pid": os.getpid(),
        }

    METHODS = {  # noqa: RUF012 - read only
        "inject": inject,
        "clear_faults": clear_faults,
        "set_key": set_key,
        "run_task": run_task,
        "task_history": task_history,
        "stats": stats,
    }

    async def serve(self, request: Request, name: str) -> Response:
        """Serve one call."""
        method = self.METHODS.get(name)
        if method is None:
            raise RefusedError(404, "NOT_FOUND", f"there is no control method {name!r}")
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise RefusedError(400, "INVALID_REQUEST", "the body is not a JSON object")
            return JSONResponse(await run_in_threadpool(method, self, body))
        except KeyError as exc:
            raise RefusedError(400, "INVALID_REQUEST", f"the request lacks {exc}") from None
        except (TypeError, ValueError, PublicKeyError) as exc:
            raise RefusedError(400, "INVALID_REQUEST", str(exc)) from None
