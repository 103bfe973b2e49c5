"""Which statement goes where: to fakesnow, or to what the emulator knows itself; runs in it."""

# ruff: noqa: SLF001 - fakesnow's connection is ours

from __future__ import annotations

import re
from typing import Any

import duckdb
import snowflake.connector.errors
import sqlglot
from fakesnow.dialect import parse_one
from fakesnow.statement_type import statement_type_id
from sqlglot import Expr, exp

from penstock.emulator.snowflake import blocks, tables
from penstock.emulator.snowflake.cursor import Cursor, translated
from penstock.emulator.snowflake.database import Database
from penstock.emulator.snowflake.errors import sql_error
from penstock.emulator.snowflake.names import ObjectName, resolve
from penstock.emulator.snowflake.objects import Objects
from penstock.emulator.snowflake.scripting import BlockRun
from penstock.emulator.snowflake.tasks import Tasks
from penstock.emulator.snowflake.users import Users

_BEGIN = re.compile(r"(BEGIN|START)(\s+(TRANSACTION|WORK))?(\s+NAME\s+\S+)?", re.IGNORECASE)
_END = re.compile(r"(COMMIT|ROLLBACK)(\s+WORK)?", re.IGNORECASE)
_IMMEDIATE = re.compile(r"EXECUTE\s+IMMEDIATE\s+\$\$(.*)\$\$", re.IGNORECASE | re.DOTALL)
_CHANGES = (exp.Update, exp.Delete, exp.Merge, exp.TruncateTable)
_WAREHOUSE = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Copy)
_INSERTS = (exp.Insert, exp.Merge)


class Statements:
    """Runs statements of sessions and of tasks."""

    def __init__(self, database: Database, users: Users) -> None:
        self._database = database
        self._objects = Objects(database, users)
        self.tasks = Tasks(database, self.run, self._holds)
        # Statements that would have woken a warehouse.
        self.warehouse_statements = 0

    def enter(self, cursor: Cursor, database: str | None, schema: str | None) -> None:
        """Set a new session's database and schema, those of them that exist."""
        if not database or database.upper() not in self._database.names():
            return
        known = cursor._duck_conn.execute(
            "SELECT schema_name FROM duckdb_schemas() WHERE database_name = ? "
            "AND lower(schema_name) = lower(?)",
            [database.upper(), schema or "PUBLIC"],
        ).fetchone()
        cursor.use(database.upper(), known[0] if known else None)

    def run(self, cursor: Cursor, statement: str, parameters: Any = None) -> int:
        """Run one statement; returns Snowflake's number of its kind."""
        connection = cursor.connection
        try:
            return self._run(cursor, statement.strip().rstrip(";").rstrip(), parameters)
        except (duckdb.Error, snowflake.connector.errors.ProgrammingError) as exc:
            raise translated(exc) from exc
        except snowflake.connector.errors.Error:
            raise
        except Exception as exc:  # the top of a statement: fakesnow does not know all there are
            raise sql_error(
                f"the emulator cannot run this statement: {type(exc).__name__} {exc}", 2, "0A000"
            ) from exc
        finally:
            if not connection.is_in_transaction:
                self._database.change_lock.release(connection)

    def _run(self, cursor: Cursor, statement: str, parameters: Any) -> int:
        if _BEGIN.fullmatch(statement):
            cursor.begin()
            return 0x5000
        if match := _END.fullmatch(statement):
            cursor.end(is_commit=match[1].upper() == "COMMIT")
            return 0x5000
        if match := _IMMEDIATE.fullmatch(statement):
            statement = match[1].strip()
        if blocks.is_block(statement):
            BlockRun(cursor, self.run, blocks.parse_body(statement)).run()
            cursor.say("anonymous block")
            return 0
        if self.tasks.run(cursor, statement) or self._objects.run(cursor, statement):
            return 0
        return self._run_sql(cursor, statement, parameters)

    def _run_sql(self, cursor: Cursor, statement: str, parameters: Any) -> int:
        expression = parse_one(statement)
        type_id = statement_type_id(expression)
        if isinstance(expression, exp.Create | exp.Drop) and expression.kind == "DATABASE":
            self._database_statement(cursor, expression)
            return type_id
        if isinstance(expression, exp.Use) and cursor.use_statement(expression):
            return type_id
        if _needs_warehouse(expression):
            self.warehouse_statements += 1
        if isinstance(expression, _CHANGES) and not self._database.change_lock.acquire(
            cursor.connection
        ):
            raise sql_error("Statement waited too long for the lock of a table.", 625, "57014")
        consumed = self._consumed_streams(cursor, expression)
        expression = self._replaced(cursor, expression)
        cursor.run_parsed(expression, parameters)
        for name in consumed:
            self._objects.consume(cursor, name)
        if isinstance(expression, _INSERTS):
            self._note_inserts(cursor, expression)
        return type_id

    def _database_statement(self, cursor: Cursor, expression: exp.Create | exp.Drop) -> None:
        named = expression.find(exp.Identifier)
        assert named is not None  # noqa: S101 - the grammar asks for one
        name = named.this if named.quoted else named.this.upper()
        exists = name in self._database.names()
        cursor.commit_open()
        if isinstance(expression, exp.Drop):
            if not exists and not expression.args.get("exists"):
                raise sql_error(f"Database '{name}' does not exist.", 2003, "02000")
            if exists:
                if cursor.connection.database == name:
                    cursor.forget_place()
                self._database.drop(name)
            cursor.say(f"{name} successfully dropped.")
            return
        if exists:
            if not expression.args.get("exists"):
                raise sql_error(f"Object '{name}' already exists.", 2002, "42710")
            cursor.say(f"{name} already exists, statement succeeded.")
            return
        self._database.create(name)
        cursor.use(name, "PUBLIC")
        cursor.say(f"Database {name} successfully created.")

    def _replaced(self, cursor: Cursor, expression: Expr) -> Expr:
        """Put in what SYSTEM$... and ERROR_TABLE(...) stand for."""
        for call in list(expression.find_all(exp.Anonymous)):
            name = str(call.this).upper()
            if name.startswith("SYSTEM$"):
                call.replace(self._system(cursor, name, call))
            elif name == "ERROR_TABLE":
                table = call.expressions[0].sql(dialect="snowflake")
                query = sqlglot.parse_one(self._objects.error_table(cursor, table), read="duckdb")
                parent = call.parent
                assert isinstance(parent, exp.Table | exp.TableFromRows)  # noqa: S101 - grammar
                parent.replace(exp.Subquery(this=query, alias=parent.args.get("alias")))
        return expression

    def _system(self, cursor: Cursor, name: str, call: exp.Anonymous) -> Expr:
        if name != "SYSTEM$STREAM_HAS_DATA" or len(call.expressions) != 1:
            raise sql_error(f"Unknown function {name}.", 2140, "42601")
        return exp.Boolean(this=self._objects.stream_has_data(cursor, call.expressions[0].name))

    def _holds(self, cursor: Cursor, condition: str) -> bool:
        """Evaluate the condition of a task, which needs no warehouse."""
        expression = self._replaced(cursor, parse_one(f"SELECT {condition}"))
        row = cursor._duck_conn.execute(expression.sql(dialect="duckdb")).fetchone()
        return bool(row and row[0])

    def _consumed_streams(self, cursor: Cursor, expression: Expr) -> list[ObjectName]:
        """Find the streams that a statement reads, and put their tables in their places."""
        if not self._database.streamed:
            return []
        found = []
        for table in list(expression.find_all(exp.Table)):
            if not isinstance(table.this, exp.Identifier):
                continue
            where = _named(cursor, table)
            stream = self._objects.stream(cursor, where) if where else None
            if where is None or stream is None:
                continue
            select = table.find_ancestor(exp.Select)
            condition = select.args.get("where") if select is not None else None
            if condition is None or not _is_false(cursor, condition.this):
                raise sql_error(
                    "the emulator keeps no rows of streams: read the table, and consume the "
                    "stream with SELECT ... FROM stream WHERE 0 = 1",
                    2,
                    "0A000",
                )
            target = exp.table_(stream[1], db=stream[0], catalog=where[0], quoted=True)
            target.set("alias", table.args.get("alias") or exp.TableAlias(this=table.this.copy()))
            table.replace(target)
            if isinstance(expression, exp.Insert | exp.Merge | exp.Create):
                found.append(where)
        return found

    def _note_inserts(self, cursor: Cursor, expression: Expr) -> None:
        """Count rows for streams on the table that a statement has inserted into."""
        named = expression.this.find(exp.Table)
        where = _named(cursor, named) if named is not None else None
        table = tables.find_table(cursor._duck_conn, *where) if where else None
        if table is not None and cursor.rowcount:
            tables.note_inserts(self._database, cursor._duck_conn, table, cursor.rowcount)


def _named(cursor: Cursor, table: exp.Table) -> ObjectName | None:
    if not (table.catalog or cursor._conn.database) or not (table.db or cursor._conn.schema):
        return None
    parts = [part.sql(dialect="snowflake") for part in table.parts]
    return resolve(".".join(parts), cursor._conn)


def _is_false(cursor: Cursor, condition: Expr) -> bool:
    if condition.find(exp.Column):
        return False
    row = cursor._duck_conn.execute(f"SELECT {condition.sql(dialect='duckdb')}").fetchone()
    return row is not None and row[0] is False


def _needs_warehouse(expression: Expr) -> bool:
    if isinstance(expression, exp.Create):
        return expression.find(exp.Select) is not None
    if isinstance(expression, exp.Query):
        return expression.find(exp.Table) is not None and not _is_count(expression)
    return isinstance(expression, _WAREHOUSE)


def _is_count(expression: Expr) -> bool:
    """Tell whether it only counts a table's rows, which the service knows without a warehouse."""
    shape = re.sub(r"\s+", " ", expression.sql(dialect="snowflake"))
    return re.fullmatch(r"SELECT COUNT\(\*\)( AS \S+)? FROM \S+", shape) is not None
