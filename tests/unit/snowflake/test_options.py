"""Options of the sink: checked before anything runs, with the remedy in the message."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.options import SnowpipeOptions

GIVEN = {
    "account": "org-acc",
    "user": "LOADER",
    "database": "shop",
    "table": "orders",
    "privateKeyFile": "/key.p8",
}


def parse(**more: str) -> SnowpipeOptions:
    return SnowpipeOptions.parse({**GIVEN, **more})


def test_names_are_read_as_in_sql() -> None:
    assert parse().target == TableName("SHOP", "PUBLIC", "ORDERS")
    assert parse(table='"Orders.1"', schema='"my schema"').target == TableName(
        "SHOP", "my schema", "Orders.1"
    )
    assert parse(table="x.y.z").target == TableName("X", "Y", "Z")


def test_the_host_is_the_account_s() -> None:
    assert parse().host_name == "org-acc.snowflakecomputing.com"
    assert parse(host="localhost").host_name == "localhost"


@pytest.mark.parametrize("name", list(GIVEN))
def test_required_options_are_missed(name: str) -> None:
    left = {key: value for key, value in GIVEN.items() if key != name}
    with pytest.raises(OptionError, match=rf"'{name}'.*is not set"):
        SnowpipeOptions.parse(left)


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="Did you mean 'privateKeyFile'"):
        parse(privateKeyFiel="x")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"onRefusedRows": "dead-letter"}, "deadLetterTable"),
        ({"deadLetterTable": "x"}, "onRefusedRows"),
        ({"deadLetterTable": "orders", "onRefusedRows": "dead-letter"}, "Name another table"),
        ({"merge": "true", "warehouse": "w"}, "keyColumns"),
        ({"merge": "true", "keyColumns": "id"}, "warehouse"),
        ({"keyColumns": "id"}, "merge"),
        ({"mergeSchedule": "5 minutes"}, "merge"),
        ({"landingSchema": "l"}, "merge"),
        ({"table": "a.b.c.d"}, "more than database"),
        ({"table": "my table"}, "double quotes"),
        ({"mergeSchedule": "soon"}, "schedule"),
        ({"keyColumns": "a,,b"}, "commas"),
        ({"keyColumns": "a,a"}, "each once"),
        ({"channels": "0"}, "at least 1"),
        ({"channelPrefix": "a b"}, "letters"),
        ({"host": "https://x"}, "without https"),
        ({"flushTimeout": "10"}, "unit"),
        ({"sdkProperties": "max_client_lag"}, "name=value"),
        ({"sdkProperties": "a=b, private_key=c"}, "private_key, which other options"),
        ({"onNonFinite": "drop"}, "keep, refuse, null"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(more: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse(**more)


def test_changes_land_beside_the_target_unless_told_otherwise() -> None:
    given = {"merge": "true", "keyColumns": "id, part", "warehouse": "w"}
    assert parse(**given).written == TableName("SHOP", "PUBLIC", "ORDERS_LANDING")
    assert parse(**given, landingSchema="l").written == TableName("SHOP", "L", "ORDERS_LANDING")
    assert parse(**given).key_columns == ("id", "part")
    assert parse().written == parse().target
