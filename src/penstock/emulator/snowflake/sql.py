"""The endpoints that snowflake-connector-python asks for: login, queries, sessions.

Runs in the emulator. A statement that fails is an answer with HTTP 200, as in Snowflake: after an
HTTP error the connector would try again for minutes.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import secrets
import threading
import uuid
import zlib
from base64 import b64encode
from typing import Any

import snowflake.connector.errors
from fakesnow.arrow import to_ipc
from fakesnow.converter import from_binding
from fakesnow.expr import normalise_ident
from fakesnow.rowtype import describe_as_rowtype
from fakesnow.statement_type import DML_TYPE_IDS
from fakesnow.transforms import SERVER_VERSION
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.emulator.snowflake.cursor import Cursor
from penstock.emulator.snowflake.database import Connection, Database
from penstock.emulator.snowflake.errors import JWT_INVALID, LoginRefusedError, RefusedError
from penstock.emulator.snowflake.results import result_form
from penstock.emulator.snowflake.statements import Statements
from penstock.emulator.snowflake.users import Users

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass
class Session:
    """One logged-in connection; its lock lets one statement run at a time."""

    user: str
    connection: Connection
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Sql:
    """The endpoints; each method serves one, named as faults name it."""

    def __init__(self, database: Database, users: Users, statements: Statements) -> None:
        self._database = database
        self._users = users
        self._statements = statements
        self.sessions: dict[str, Session] = {}

    async def login(self, request: Request) -> Response:
        """Open a session for a key pair's JWT."""
        data = (await _json_body(request)).get("data")
        data = data if isinstance(data, dict) else {}
        if str(data.get("AUTHENTICATOR", "")).upper() != "SNOWFLAKE_JWT":
            return _failed("390100", "The emulator takes key pairs only: set private_key.")
        try:
            user = self._users.check_jwt(str(data.get("TOKEN", "")))
        except LoginRefusedError as exc:
            _LOGGER.info("login refused: %s", exc)
            return _failed(JWT_INVALID, f"JWT token is invalid. [{uuid.uuid4()}]")
        parameters = data.get("SESSION_PARAMETERS")
        parameters = parameters if isinstance(parameters, dict) else {}
        is_autocommit = parameters.get("AUTOCOMMIT", True)
        query = request.query_params

        def connect() -> Session:
            connection = self._database.connect(autocommit=bool(is_autocommit))
            session = Session(user, connection)
            self._statements.enter(
                Cursor(self._database, connection),
                _identifier(query.get("databaseName")),
                _identifier(query.get("schemaName")),
            )
            return session

        session = await run_in_threadpool(connect)
        token = secrets.token_urlsafe(32)
        self.sessions[token] = session
        return _done(
            {
                "token": token,
                "masterToken": token,
                "serverVersion": SERVER_VERSION,
                "validityInSeconds": 3600,
                "masterValidityInSeconds": 14400,
                "parameters": [
                    {"name": "AUTOCOMMIT", "value": is_autocommit},
                    {"name": "CLIENT_SESSION_KEEP_ALIVE_HEARTBEAT_FREQUENCY", "value": 3600},
                    {"name": "CLIENT_STAGE_ARRAY_BINDING_THRESHOLD", "value": 0},
                    {"name": "CLIENT_TELEMETRY_ENABLED", "value": False},
                ],
                "sessionInfo": {
                    "databaseName": session.connection.database,
                    "schemaName": session.connection.schema,
                    "roleName": query.get("roleName"),
                    "warehouseName": query.get("warehouse"),
                },
            }
        )

    async def query(self, request: Request) -> Response:
        """Run one statement."""
        session = self._session(request)
        body = await _json_body(request)
        statement = body.get("sqlText")
        if not isinstance(statement, str):
            raise RefusedError(400, "390400", "sqlText is not a text")
        bindings = body.get("bindings") or {}
        return await run_in_threadpool(self._run, session, statement, bindings)

    def _run(self, session: Session, statement: str, bindings: dict[str, Any]) -> Response:
        with session.lock:
            cursor = Cursor(self._database, session.connection)
            try:
                if any(isinstance(b.get("value"), list) for b in bindings.values()):
                    return self._run_many(cursor, session, statement, bindings)
                type_id = self._statements.run(cursor, statement, _parameters(bindings))
                return _answer(cursor, session, type_id)
            except snowflake.connector.errors.Error as exc:
                code = f"{exc.errno:06d}"
                details = {"errorCode": code, "sqlState": exc.sqlstate, "queryId": cursor.sfqid}
                return _failed(code, str(exc.raw_msg or exc.msg), details)

    def _run_many(
        self, cursor: Cursor, session: Session, statement: str, bindings: dict[str, Any]
    ) -> Response:
        """Run a statement for each row of an array binding, as one statement."""
        columns = [
            [from_binding({**binding, "value": value}) for value in binding["value"]]
            for binding in (bindings[str(i)] for i in range(1, len(bindings) + 1))
        ]
        count = 0
        type_id = 0
        for row in zip(*columns, strict=True):
            type_id = self._statements.run(cursor, statement, row)
            count += cursor.rowcount or 0
        answer = {"queryResultFormat": "json", "rowset": [[str(count)]], "total": 1}
        return _done(_described(cursor, session, type_id) | answer)

    async def session(self, request: Request) -> Response:
        """Close a session, or keep it alive."""
        session = self._session(request)
        if request.query_params.get("delete"):
            self.sessions.pop(_token(request), None)
            await run_in_threadpool(self._close, session)
        return _done(None)

    def _close(self, session: Session) -> None:
        with session.lock:
            self._database.leave(session.connection)

    def close(self) -> None:
        """Close all sessions."""
        while self.sessions:
            self._close(self.sessions.popitem()[1])

    def _session(self, request: Request) -> Session:
        session = self.sessions.get(_token(request))
        if session is None:
            raise RefusedError(401, "390104", "User must login again to access the service.")
        return session


def _answer(cursor: Cursor, session: Session, type_id: int) -> Response:
    answer = _described(cursor, session, type_id)
    table: Any = cursor._arrow_table  # noqa: SLF001 - a cursor of ours
    if table is None:
        answer |= {"queryResultFormat": "arrow", "rowsetBase64": "", "total": 0}
    elif type_id in DML_TYPE_IDS:
        rows = zip(*[column.to_pylist() for column in table.columns], strict=True)
        answer |= {
            "queryResultFormat": "json",
            "rowset": [[None if v is None else str(v) for v in row] for row in rows],
            "total": table.num_rows,
        }
    else:
        packed = b64encode(to_ipc(result_form(table, answer["rowtype"]))).decode()
        answer |= {
            "queryResultFormat": "arrow",
            "rowsetBase64": packed,
            "total": table.num_rows,
        }
    return _done(answer)


def _described(cursor: Cursor, session: Session, type_id: int) -> dict[str, Any]:
    return {
        "parameters": [{"name": "TIMEZONE", "value": "Etc/UTC"}],
        "rowtype": describe_as_rowtype(cursor._describe_last_sql()),  # noqa: SLF001 - ours
        "queryId": str(uuid.uuid4()),
        "statementTypeId": type_id,
        "finalDatabaseName": session.connection.database,
        "finalSchemaName": session.connection.schema,
    }


def _parameters(bindings: dict[str, Any]) -> Any:
    if not bindings:
        return None
    if not all(key.isdigit() for key in bindings):
        return {name: from_binding(binding) for name, binding in bindings.items()}
    return tuple(from_binding(bindings[str(i)]) for i in range(1, len(bindings) + 1))


def _identifier(name: str | None) -> str | None:
    return normalise_ident(name).replace('""', '"') if name else None


def _token(request: Request) -> str:
    # Snowflake Token="..."
    return request.headers.get("Authorization", "").partition('"')[2].rstrip('"')


async def _json_body(request: Request) -> dict[str, Any]:
    body = await request.body()
    try:
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        value = json.loads(body)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        raise RefusedError(400, "390400", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(400, "390400", "the body is not a JSON object")
    return value


def _done(data: Any) -> Response:
    return JSONResponse({"data": data, "code": None, "message": None, "success": True})


def _failed(code: str, message: str, data: Any = None) -> Response:
    return JSONResponse({"data": data, "code": code, "message": message, "success": False})
