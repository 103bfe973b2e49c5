"""A capture of PostgreSQL 18, kept for ever: what was read once is read the same later."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.support.pgoutput import decode, to_batch

GOLDEN = Path(__file__).parents[3] / "golden" / "pgoutput-v1.json"


def golden() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(GOLDEN.read_text())
    return content


def golden_messages() -> list[bytes]:
    return [base64.b64decode(message) for message in golden()["messages"]]


def test_a_capture_gives_the_rows_that_it_gave_first() -> None:
    rows = decode([to_batch(golden_messages())], primary_key=lambda _relation: ("id",))

    assert [
        {
            "table": row.relation.full_name,
            "columns": [[c.name, c.type_oid, c.typmod, c.is_key] for c in row.relation.columns],
            "op": row.op,
            "lsn": row.lsn,
            "ordinal": row.ordinal,
            "commit_time_us": row.commit_time_us,
            "xid": row.xid,
            "values": list(row.values),
            "unchanged": list(row.unchanged),
        }
        for row in rows
    ] == golden()["rows"]
