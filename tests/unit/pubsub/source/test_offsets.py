from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import CheckpointError
from penstock.pubsub.source.offsets import PubSubOffset

GOLDEN = Path(__file__).parents[3] / "golden" / "pubsub-offset-v1.json"


def test_offset_written_by_version_1_is_read() -> None:
    assert PubSubOffset.from_json(json.loads(GOLDEN.read_text())) == PubSubOffset(42)


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
    ],
)
def test_what_is_not_an_offset_is_refused(foreign: object) -> None:
    with pytest.raises(CheckpointError, match="OFFSET_FOREIGN"):
        PubSubOffset.from_json(foreign)
