"""Options of the streaming source: what is taken, completed, and refused with a reason."""

from __future__ import annotations

import datetime
import pickle

import pytest

from penstock.errors import OptionError
from penstock.pubsub.source.options import PubSubSourceOptions, parse_moment

NAMES = {"projectId": "tests", "subscriptionId": "orders-sub"}


def parse(**raw: str) -> PubSubSourceOptions:
    return PubSubSourceOptions.parse({**NAMES, **raw})


def test_short_ids_are_completed() -> None:
    options = parse(topicId="orders", startingPosition="snapshot", startingSnapshot="before")
    assert options.subscription == "projects/tests/subscriptions/orders-sub"
    assert options.topic == "projects/tests/topics/orders"
    assert options.snapshot == "projects/tests/snapshots/before"


def test_options_travel() -> None:
    options = parse(maxRowsPerTrigger="10")
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own


@pytest.mark.parametrize(
    "text", ["2026-11-15T06:30:00Z", "2026-11-15T07:30:00+01:00", "1794724200000"]
)
def test_moments_are_rfc_3339_or_milliseconds(text: str) -> None:
    moment = datetime.datetime(2026, 11, 15, 6, 30, tzinfo=datetime.UTC)
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"startingPosition": "timestamp"}, "startingTimestamp"),
        ({"startingTimestamp": "2026-11-15T06:30:00Z"}, "startingPosition=timestamp"),
        (
            {"startingPosition": "timestamp", "startingTimestamp": "2026-11-15 06:30:00"},
            "RFC 3339",
        ),
        ({"startingPosition": "snapshot"}, "startingSnapshot"),
        ({"minRowsPerTrigger": "5", "maxRowsPerTrigger": "4"}, "Lower minRowsPerTrigger"),
        ({"leaseDuration": "9s"}, "leaseDuration"),
        ({"leaseDuration": "601s"}, "leaseDuration"),
        ({"maxRowsPerTriger": "4"}, "maxRowsPerTrigger"),
        ({"schemaStyle": "databrick"}, "databricks"),
        ({"subscriptionId": "a/b"}, "subscriptionId"),
    ],
)
def test_what_cannot_be_meant_is_refused(raw: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match="PENSTOCK_") as caught:
        parse(**raw)
    assert words in str(caught.value)
