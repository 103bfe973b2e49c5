"""From JSON lines to rows of a table, vectorised in DuckDB; runs in the emulator.

Rows that do not fit are left out and told about, as the service does it with ON_ERROR = CONTINUE.
"""

# ruff: noqa: S608 - names are quoted, values are parameters

from __future__ import annotations

import dataclasses
import gzip
import tempfile
import zlib
from pathlib import Path

import duckdb
import pyarrow as pa

from penstock.emulator.snowflake import tables
from penstock.emulator.snowflake.columns import Column
from penstock.emulator.snowflake.database import quoted
from penstock.emulator.snowflake.errors import RefusedError
from penstock.emulator.snowflake.tables import TableName

_LARGEST_ROW_BYTES = 64 << 20
_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, where there is one


@dataclasses.dataclass(frozen=True)
class Inserted:
    """What became of the rows of one request."""

    parsed: int
    inserted: int
    message: str | None

    @property
    def refused(self) -> int:
        """Count the rows that did not fit."""
        return self.parsed - self.inserted


def decode(body: bytes, encoding: str) -> bytes:
    """Undo the body's compression."""
    try:
        match encoding.lower().strip():
            case "" | "identity":
                return body
            case "gzip":
                return gzip.decompress(body)
            case "zstd":
                with pa.input_stream(pa.py_buffer(body), compression="zstd") as stream:
                    return bytes(stream.read())
    except (OSError, EOFError, zlib.error, pa.ArrowException) as exc:
        raise RefusedError(400, "INVALID_PAYLOAD", f"the body is not {encoding}: {exc}") from None
    raise RefusedError(400, "INVALID_PAYLOAD", f"Content-Encoding {encoding!r} is not supported")


def insert(
    connection: duckdb.DuckDBPyConnection,
    table: TableName,
    lines: bytes,
    origin: tuple[str, str, str],
) -> Inserted:
    """Insert JSON lines within the connection's transaction; `origin` is pipe, channel, token."""
    with tempfile.NamedTemporaryFile(dir=_MEMORY if _MEMORY.is_dir() else None) as file:
        file.write(lines)
        # DuckDB overlooks a file of one byte, and takes a line that is null for a row.
        file.write(b"\n")
        file.flush()
        try:
            return _insert_file(connection, table, file.name, origin)
        except duckdb.InvalidInputException as exc:
            # The first line says what and where; the rest is advice about DuckDB's options.
            reason = str(exc).split("\n", maxsplit=1)[0].replace(file.name, "body")
            raise RefusedError(400, "INVALID_PAYLOAD", reason) from None


def _insert_file(
    connection: duckdb.DuckDBPyConnection,
    table: TableName,
    path: str,
    origin: tuple[str, str, str],
) -> Inserted:
    columns = _matched(connection, table, path)
    keys = {key: column for key, column in columns if key is not None}
    struct = ", ".join(f"{_text(key)}: '{c.read_as}'" for key, c in keys.items())
    source = (
        f"read_json({_text(path)}, format = 'newline_delimited', records = 'true', "
        f"maximum_object_size = {_LARGEST_ROW_BYTES}, columns = {{{struct}}})"
    )
    raws = [f"r{i}" for i in range(len(columns))]
    values = [f"v{i}" for i in range(len(columns))]
    selected = ", ".join(
        f"{quoted(key) if key is not None else 'NULL'} AS {raw}"
        for raw, (key, _) in zip(raws, columns, strict=True)
    )
    casts = ", ".join(
        f"{column.cast(raw)} AS {value}"
        for raw, value, (_, column) in zip(raws, values, columns, strict=True)
    )
    named = list(zip(raws, values, (c for _, c in columns), strict=True))
    misfit = " OR ".join(c.misfit(raw, value) for raw, value, c in named)
    rows = f"(SELECT *, {casts} FROM (SELECT {selected} FROM {source}))"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE _staged AS SELECT {', '.join(values)}, "
        f"({misfit}) AS misfit FROM {rows}"
    )
    found = connection.execute("SELECT count(*), count_if(misfit) FROM _staged").fetchone()
    assert found is not None  # noqa: S101 - an aggregate has one row
    parsed, refused = int(found[0]), int(found[1] or 0)
    into = ", ".join(quoted(c.name) for _, c in columns)
    connection.execute(
        f"INSERT INTO {table.sql()} ({into}) SELECT {', '.join(values)} FROM _staged"
        + (" WHERE NOT misfit" if refused else "")
    )
    message = None
    if refused:
        reasons = ", ".join(column.reason(raw, value) for raw, value, column in named)
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE _refused AS SELECT number, reason FROM (SELECT "
            f"row_number() OVER () AS number, coalesce({reasons}) AS reason FROM {rows}) "
            "WHERE reason IS NOT NULL"
        )
        message = _tell(connection, table, path, origin)
    return Inserted(parsed, parsed - refused, message)


def _matched(
    connection: duckdb.DuckDBPyConnection, table: TableName, path: str
) -> list[tuple[str | None, Column]]:
    """Pair each column with the key that names it, in any case; other keys are ignored."""
    found = connection.execute(
        "SELECT DISTINCT unnest(CASE WHEN json::VARCHAR = 'null' THEN error('a line is null') "
        "ELSE json_keys(json) END) FROM read_ndjson_objects("
        f"{_text(path)}, maximum_object_size = {_LARGEST_ROW_BYTES})"
    ).fetchall()
    by_name: dict[str, list[str]] = {}
    for (key,) in found:
        by_name.setdefault(key.upper(), []).append(key)
    pairs: list[tuple[str | None, Column]] = []
    for column in tables.describe(connection, table):
        keys = by_name.get(column.name.upper(), [])
        if len(keys) > 1:
            raise RefusedError(
                400,
                "INVALID_PAYLOAD",
                f"the emulator takes one spelling of a column's name in a request, not {keys}",
            )
        pairs.append((keys[0] if keys else None, column))
    if not any(key for key, _ in pairs):
        # Without any known key, read_json would have no columns to read.
        pairs[0] = (pairs[0][1].name, pairs[0][1])
    return pairs


def _tell(
    connection: duckdb.DuckDBPyConnection, table: TableName, path: str, origin: tuple[str, str, str]
) -> str:
    """Keep the refused rows if the table asks for it; returns the last one's message."""
    if tables.has_error_logging(connection, table):
        # Lines as they came, also with keys that no column has; both are in the body's order.
        connection.execute(
            f"INSERT INTO {table.hidden('errors')} SELECT ?, ?, now(), ?, ?, ?, reason, line "
            "FROM temp.main._refused JOIN (SELECT json AS line, row_number() OVER () AS number "
            f"FROM read_ndjson_objects({_text(path)}, "
            f"maximum_object_size = {_LARGEST_ROW_BYTES})) USING (number) ORDER BY number",
            [table.schema, table.name, *origin],
        )
    row = connection.execute("SELECT arg_max(reason, number) FROM temp.main._refused").fetchone()
    return str(row[0]) if row else ""


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
