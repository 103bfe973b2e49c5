from __future__ import annotations

import psycopg
import pytest

from penstock.postgres.types import SESSION_SETTINGS
from tests.unit.postgres.types.support import SLOT, Lab

# Another value of each setting, and a value whose text it changes.
OTHER_SETTINGS = {
    "client_encoding": ("LATIN1", "text", "\u00e9"),
    "DateStyle": ("German", "date", "2020-01-02"),
    "IntervalStyle": ("postgres", "interval", "1 day"),
    "TimeZone": ("Asia/Tokyo", "timestamptz", "2020-01-02 00:00+00"),
    "extra_float_digits": ("-3", "float8", "0.30000000000000004"),
    "bytea_output": ("escape", "bytea", "\\x00"),
    "search_path": ("public", "regclass", "public.sample"),
    "quote_all_identifiers": ("on", "regclass", "public.sample"),
}


def raw_changes(connection: psycopg.Connection[tuple[bytes]]) -> list[bytes]:
    return [
        bytes(row[0])
        for row in connection.execute(
            f"SELECT data FROM pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL,"  # noqa: S608
            " 'proto_version', '1', 'publication_names', 'types')"
        )
    ]


@pytest.mark.parametrize("name", SESSION_SETTINGS)
def test_each_setting_changes_what_pgoutput_sends(lab: Lab, name: str) -> None:
    other, sql_type, text = OTHER_SETTINGS[name]
    lab.fill(sql_type, [text])

    pinned = raw_changes(lab.sql)
    lab.sql.execute("SELECT set_config(%s, %s, false)", [name, other])
    try:
        changed = raw_changes(lab.sql)
    finally:
        lab.sql.execute("SELECT set_config(%s, %s, false)", [name, SESSION_SETTINGS[name]])
    lab.streamed_text()

    assert len(changed) == len(pinned)
    assert changed != pinned
