"""Which statement goes where: to fakesnow, or to what the emulator knows itself; runs in it."""

from __future__ import annotations

import re
from typing import Any

import duckdb
from fakesnow.conn import FakeSnowflakeConnection
from fakesnow.dialect import parse_one
from fakesnow.statement_type import statement_type_id
from sqlglot import exp

from penstock.emulator.snowflake.cursor import Cursor, translated
from penstock.emulator.snowflake.database import Database
from penstock.emulator.snowflake.errors import sql_error
from penstock.emulator.snowflake.users import SLOTS, PublicKeyError, Users

_NAME = r'(?P<name>"(?:[^"]|"")+"|[\w$]+)'
_USER = re.compile(
    rf"(?P<verb>CREATE|ALTER|DROP)\s+USER\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?{_NAME}(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_KEY = re.compile(r"(RSA_PUBLIC_KEY(?:_2)?)\s*=\s*'([^']*)'", re.IGNORECASE)
_UNSET = re.compile(r"\s*UNSET\s+(.*)", re.IGNORECASE | re.DOTALL)
_WAREHOUSE = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Copy)


class Statements:
    """Runs statements of sessions and of tasks."""

    def __init__(self, database: Database, users: Users) -> None:
        self._database = database
        self._users = users
        # Statements that would have woken a warehouse.
        self.warehouse_statements = 0

    def enter(self, cursor: Cursor, database: str | None, schema: str | None) -> None:
        """Set a new session's database and schema, those of them that exist."""
        if not database or database.upper() not in self._database.names():
            return
        known = cursor._duck_conn.execute(  # noqa: SLF001 - ours
            "SELECT schema_name FROM duckdb_schemas() WHERE database_name = ? "
            "AND lower(schema_name) = lower(?)",
            [database.upper(), schema or "PUBLIC"],
        ).fetchone()
        cursor.use(database.upper(), known[0] if known else None)

    def leave(self, connection: FakeSnowflakeConnection) -> None:
        """End what a session has left open."""

    def run(self, cursor: Cursor, statement: str, parameters: Any = None) -> int:
        """Run one statement; returns Snowflake's number of its kind."""
        try:
            return self._run(cursor, statement.strip().rstrip(";").rstrip(), parameters)
        except duckdb.Error as exc:
            raise translated(exc) from exc
        except (NotImplementedError, AssertionError, KeyError, AttributeError) as exc:
            raise sql_error(
                f"the emulator does not know this statement: {exc}", 2, "0A000"
            ) from exc

    def _run(self, cursor: Cursor, statement: str, parameters: Any) -> int:
        if match := _USER.fullmatch(statement):
            self._user(cursor, match)
            return 0
        expression = parse_one(statement)
        if isinstance(expression, exp.Create) and expression.kind == "DATABASE":
            self._create_database(cursor, expression)
            return statement_type_id(expression)
        if _needs_warehouse(expression):
            self.warehouse_statements += 1
        cursor.execute(statement, binding_params=parameters, server=True)
        return statement_type_id(expression)

    def _create_database(self, cursor: Cursor, expression: exp.Create) -> None:
        named = expression.find(exp.Identifier)
        assert named is not None  # noqa: S101 - the grammar asks for one
        name = named.this if named.quoted else named.this.upper()
        if name in self._database.names():
            if not expression.args.get("exists"):
                raise sql_error(f"Object '{name}' already exists.", 2002, "42710")
            cursor.say(f"{name} already exists, statement succeeded.")
            return
        self._database.create(name)
        cursor.use(name, "PUBLIC")
        cursor.say(f"Database {name} successfully created.")

    def _user(self, cursor: Cursor, match: re.Match[str]) -> None:
        verb = match["verb"].upper()
        name = unquoted(match["name"])
        if verb == "CREATE":
            self._users.create(name)
        elif not self._users.exists(name):
            raise sql_error(f"User '{name}' does not exist or not authorized.", 2003, "02000")
        if verb == "DROP":
            self._users.drop(name)
        for slot, key in _KEY.findall(match["rest"]):
            try:
                self._users.set_key(name, slot.upper(), key)
            except PublicKeyError as exc:
                raise sql_error(f"New public key rejected: {exc}", 390408, "22023") from None
        if unset := _UNSET.fullmatch(match["rest"]):
            for slot in re.split(r"[\s,]+", unset[1].strip()):
                if slot.upper() in SLOTS:
                    self._users.set_key(name, slot.upper(), None)
        cursor.say("Statement executed successfully.")


def unquoted(name: str) -> str:
    """Give an identifier's own text, in upper case if it was not quoted."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.upper()


def _needs_warehouse(expression: exp.Expression) -> bool:
    if isinstance(expression, exp.Create):
        return expression.find(exp.Select) is not None
    if isinstance(expression, exp.Select | exp.SetOperation):
        return expression.find(exp.Table) is not None
    return isinstance(expression, _WAREHOUSE)
