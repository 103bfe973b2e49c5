"""What the tests of the Pub/Sub API share: an emulator of their own, and the official clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from tests.support.pubsub_service import Service, running_service

# Who would tell of a mistake inside the emulator, which runs in the test's own process.
WITNESSES = ("penstock", "asyncio", "grpc")


def _is_cancelled(record: logging.LogRecord) -> bool:
    """Tell whether it is gRPC's word on a call that was beginning when the emulator was stopped."""
    return record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)


@pytest.fixture
def service(caplog: pytest.LogCaptureFixture) -> Iterator[Service]:
    """Run an emulator for one test; whatever the test does, the emulator must not stumble."""
    with running_service() as running:
        yield running
    told = [
        record.getMessage()
        for phase in ("setup", "call", "teardown")
        for record in caplog.get_records(phase)
        if record.levelno >= logging.ERROR
        and record.name.startswith(WITNESSES)
        and not _is_cancelled(record)
    ]
    assert told == []
