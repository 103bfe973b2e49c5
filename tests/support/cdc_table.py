"""Tables rebuilt from a stream, and compared with their source by the server itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tests.support.cdc import rebuild


def rebuild_table(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Apply a stream to nothing. Without a key only inserts and truncates are understood."""
    changes = changes.sort_by([("_lsn", "ascending"), ("_ordinal", "ascending")])
    names = [name for name in changes.column_names if not name.startswith("_")]
    truncates = np.flatnonzero(pc.equal(changes["_op"], "truncate").to_numpy())
    if len(truncates):
        changes = changes.slice(int(truncates[-1]) + 1)
    if not key:
        assert set(changes["_op"].unique().to_pylist()) <= {"snapshot", "insert"}
        return changes.select(names)
    is_snapshot = pc.equal(changes["_op"], "snapshot")
    snapshot, later = changes.filter(is_snapshot), changes.filter(pc.invert(is_snapshot))
    # Most rows of a large snapshot are never changed again: row by row goes only the rest.
    touched = later.select(key).group_by(list(key)).aggregate([])
    places = snapshot.select(key).append_column("_place", pa.array(np.arange(len(snapshot))))
    kept, first = (
        snapshot.take(places.join(touched, keys=list(key), join_type=how)["_place"])
        for how in ("left anti", "left semi")
    )
    state = rebuild([*first.to_pylist(), *later.to_pylist()], *key)
    changed = pa.Table.from_pylist(
        list(state.values()), schema=pa.schema([changes.schema.field(name) for name in names])
    )
    return pa.concat_tables([kept.select(names), changed])


def checksum(db: psycopg.Connection[Any], table: str) -> tuple[int, int]:
    """Give a table's rows and a sum over all their columns, whatever their order."""
    row = db.execute(
        "SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)"  # noqa: S608
        f" FROM {table} t".encode()
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def assert_same_table(
    db: psycopg.Connection[Any], table: str, changes: pa.Table, key: Sequence[str]
) -> int:
    """Check that a stream gives exactly its source; gives the number of rows there."""
    return assert_same_rows(db, table, rebuild_table(changes, key))


def assert_same_rows(db: psycopg.Connection[Any], table: str, rebuilt: pa.Table) -> int:
    """Check that rows are exactly those of a table; gives their number."""
    db.execute(f"CREATE TEMPORARY TABLE rebuilt (LIKE {table})".encode())
    try:
        text = io.BytesIO()
        # A null is nothing, and an empty text is two quotes: as COPY reads them.
        pyarrow.csv.write_csv(rebuilt, text, pyarrow.csv.WriteOptions(include_header=False))
        names = ", ".join(rebuilt.column_names)
        with db.cursor().copy(f"COPY rebuilt ({names}) FROM STDIN (FORMAT csv)") as copy:
            copy.write(text.getvalue())
        found, expected = checksum(db, "rebuilt"), checksum(db, table)
        if found != expected:
            missing = db.execute(
                f"SELECT * FROM {table} EXCEPT SELECT * FROM rebuilt LIMIT 5".encode()  # noqa: S608
            ).fetchall()
            added = db.execute(
                f"SELECT * FROM rebuilt EXCEPT SELECT * FROM {table} LIMIT 5".encode()  # noqa: S608
            ).fetchall()
            raise AssertionError(
                f"{table} has {expected}, rebuilt {found}; only there {missing}, only here {added}"
            )
    finally:
        db.execute("DROP TABLE rebuilt")
    return expected[0]
