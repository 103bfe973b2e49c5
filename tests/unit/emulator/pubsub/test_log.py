"""The topic's log: what is stored, found and freed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.emulator.pubsub import log as log_module
from penstock.emulator.pubsub.log import TopicLog


def append(
    log: TopicLog, *messages: bytes, keys: list[str] | None = None, time_us: int = 0
) -> None:
    texts = pa.array(list(messages), pa.binary())
    log.append(texts, pa.array(keys or [""] * len(messages)), 10**16 + log.end, time_us)


def filled(*counts: int) -> TopicLog:
    """Make a log with one block for each count; the data of a message is its position."""
    log = TopicLog()
    for count in counts:
        append(log, *[b"%d" % (log.end + n) for n in range(count)], time_us=log.end)
    return log


def taken(log: TopicLog, positions: list[int]) -> list[bytes]:
    return list(log.take(np.array(positions)).to_pylist())


@given(
    counts=st.lists(st.integers(1, 200), min_size=1, max_size=90),
    data=st.data(),
)
def test_any_positions_are_taken_in_order(counts: list[int], data: st.DataObject) -> None:
    log = filled(*counts)
    chosen = data.draw(st.sets(st.integers(0, log.end - 1), min_size=1, max_size=20))
    assert taken(log, sorted(chosen)) == [b"%d" % position for position in sorted(chosen)]
    sizes = log.sizes[np.array(sorted(chosen))].tolist()
    assert sizes == [len(b"%d" % position) for position in sorted(chosen)]


def test_single_messages_share_their_blocks() -> None:
    log = filled(*[1] * 5000)
    assert len(log._blocks) < 5000 / 64 + 70
    assert taken(log, [0, 2500, 4999]) == [b"0", b"2500", b"4999"]


def test_large_messages_are_not_copied_together() -> None:
    log = TopicLog()
    for n in range(200):
        append(log, bytes([n]) * log_module._SMALL_BLOCK_BYTES)
    assert len(log._blocks) == 200


def test_joining_stops_at_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_SMALL_BLOCK_BYTES", 1000)
    log = TopicLog()
    for _ in range(2000):
        append(log, b"x" * 100)
    assert max(block.messages.nbytes for block in log._blocks if block.messages) < 100 * 200
    assert taken(log, list(range(2000))) == [b"x" * 100] * 2000


def test_front_is_freed_in_whole_blocks() -> None:
    log = filled(600, 600, 600)
    log.release(700, lambda low, high: True)
    assert (log.first, log.end) == (600, 1800)
    assert taken(log, [600, 1799]) == [b"600", b"1799"]
    log.release(1800, lambda low, high: True)
    assert (log.first, log.end, log.stored_bytes) == (1800, 1800, 0)
    append(log, b"next")
    assert taken(log, [1800]) == [b"next"]


def test_holes_are_freed_and_told() -> None:
    log = filled(600, 600, 600)
    before = log.stored_bytes
    log.release(0, lambda low, high: low != 600)
    assert log.first == 0
    assert log.stored_bytes < before
    assert log.kept_positions(0, 1800).tolist() == [*range(600), *range(1200, 1800)]
    assert log.kept_positions(590, 1210).tolist() == [*range(590, 600), *range(1200, 1210)]
    assert log.is_kept(0, 600)
    assert not log.is_kept(599, 601)
    assert log.is_kept(1200, 1800)
    assert log.is_kept(5, 5)
    with pytest.raises(AssertionError, match="600 was released"):
        log.take(np.array([600]))


def test_hole_in_a_run_of_small_blocks_is_not_joined_over() -> None:
    log = filled(*[1] * 40)
    log.release(0, lambda low, high: low != 10)
    for n in range(40, 300):
        append(log, b"%d" % n)
    assert log.kept_positions(0, 300).tolist() == [n for n in range(300) if n != 10]
    assert taken(log, [9, 11, 299]) == [b"9", b"11", b"299"]


def test_times_are_found_and_never_go_back() -> None:
    log = TopicLog()
    for time_us in (100, 200, 150, 300):
        append(log, b"x", b"y", time_us=time_us)
    assert log.times_us.window(0, 8).tolist() == [100, 100, 200, 200, 200, 200, 300, 300]
    assert [log.find_time(t) for t in (0, 100, 101, 200, 201, 300, 301)] == [0, 0, 2, 2, 6, 6, 8]


def test_time_does_not_go_back_after_all_was_freed() -> None:
    log = TopicLog()
    append(log, b"x", time_us=500)
    log.release(1, lambda low, high: True)
    append(log, b"y", time_us=400)
    assert log.find_time(500) == 1


def test_keys_are_numbered_and_no_key_is_zero() -> None:
    log = TopicLog()
    append(log, b"1", b"2", b"3", keys=["b", "", "a"])
    append(log, b"4", b"5", keys=["", ""])
    append(log, b"6", keys=["b"])
    codes = log.key_codes.window(0, 6).tolist()
    assert codes[1] == codes[3] == codes[4] == 0
    assert codes[0] == codes[5] != codes[2] != 0


def test_keys_that_nobody_needs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_IDLE_KEYS", 100)
    log = TopicLog()
    for n in range(1000):
        append(log, b"x", keys=[f"key-{n}"])
        if n % 50 == 49:
            log.release(log.end - 1, lambda low, high: True)
    assert len(log._codes) < 400
    append(log, b"x", b"y", keys=["key-999", "key-1"])
    last = int(log.key_codes[np.array([999])][0])
    assert log.key_codes[np.array([1000])].tolist() == [last]
    assert log.key_codes[np.array([1001])].tolist() != [last]
