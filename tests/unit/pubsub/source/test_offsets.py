from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import CheckpointError
from penstock.pubsub.source.offsets import PubSubOffset

GOLDEN = Path(__file__).parents[3] / "golden"


def test_offset_written_by_version_1_is_read() -> None:
    text = (GOLDEN / "pubsub-offset-v1.json").read_text()
    assert PubSubOffset.from_json(json.loads(text)) == PubSubOffset(42)


def test_offset_written_by_version_2_is_read() -> None:
    text = (GOLDEN / "pubsub-offset-v2.json").read_text()
    offset = PubSubOffset.from_json(json.loads(text))
    assert offset == PubSubOffset(42, 4, "0123456789abcdef")
    # Spark compares the text of offsets to see whether there is anything new.
    assert json.dumps(offset.to_json()) == text.strip()


def test_offset_survives_json() -> None:
    assert PubSubOffset.from_json(json.loads(json.dumps(PubSubOffset(7).to_json()))).tick == 7


def test_offset_of_a_later_version_names_the_version() -> None:
    with pytest.raises(CheckpointError, match="version 3"):
        PubSubOffset.from_json({"v": 3, "tick": 1})


@pytest.mark.parametrize(
    "foreign",
    [
        None,
        3,
        [],
        {},
        {"v": 1},
        {"v": 1, "tick": -1},
        {"v": 1, "tick": "1"},
        {"v": 1, "tick": True},
        {"v": 2, "tick": 1},
        {"v": 2, "tick": 1, "partitions": -1, "spool": "a"},
        {"v": 2, "tick": 1, "partitions": 1, "spool": "../a"},
        {"v": 2, "tick": 1, "partitions": 1, "spool": None},
    ],
)
def test_what_is_not_an_offset_is_refused(foreign: object) -> None:
    with pytest.raises(CheckpointError, match="OFFSET_FOREIGN"):
        PubSubOffset.from_json(foreign)
