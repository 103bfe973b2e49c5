from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.pubsub.source.coordinator import Coordinator


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator()
    made.start()
    yield made
    made.stop()
