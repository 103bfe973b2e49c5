"""Rows become requests: complete, in order, within the limits, and not later than they linger."""

from __future__ import annotations

import math

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pubsub.encoding import encode_request
from penstock.pubsub.packing import Packer, Request
from penstock.pubsub.rows import Rows, group, read_batch

TOPIC = "projects/p/topics/orders"


def rows_of(data: list[bytes]) -> Rows:
    batch = read_batch(pa.record_batch({"data": pa.array(data, pa.binary())}), TOPIC, None)
    (rows,) = group(batch, is_ordered=False)
    return rows


def data_of(requests: list[Request]) -> list[bytes]:
    return [value for one in requests for value in one.messages.column("data").to_pylist()]


@given(
    batches=st.lists(
        st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=9), max_size=6
    ),
    max_rows=st.integers(1, 6),
    max_bytes=st.integers(30, 250),
    linger=st.sampled_from([0.0, 1.0]),
)
@settings(deadline=None)
def test_requests_hold_every_row_once_in_order_and_obey_both_limits(
    batches: list[list[bytes]], max_rows: int, max_bytes: int, linger: float
) -> None:
    packer = Packer(max_rows, max_bytes, linger)
    sealed: list[Request] = []
    for batch in batches:
        sealed += packer.add(rows_of(batch), 0.0)
    sealed += packer.take_due(math.inf)
    assert packer.is_empty
    assert data_of(sealed) == [value for batch in batches for value in batch]
    for request in sealed:
        count = request.messages.num_rows
        assert 1 <= count <= max_rows
        assert count == 1 or len(encode_request(TOPIC, request.messages)) <= max_bytes


def test_an_incomplete_request_is_due_when_its_first_row_has_lingered() -> None:
    packer = Packer(10, 10_000, 5.0)
    assert packer.add(rows_of([b"a"]), 100.0) == []
    assert packer.add(rows_of([b"b"]), 104.0) == []
    assert packer.next_due() == 105.0
    assert packer.take_due(104.9) == []
    assert data_of(packer.take_due(105.0)) == [b"a", b"b"]
    assert packer.next_due() == math.inf


def test_halves_keep_every_row_and_the_order() -> None:
    packer = Packer(5, 10_000, 0.0)
    (request,) = packer.add(rows_of([b"0", b"1", b"2", b"3", b"4"]), 0.0)
    first, second = request.halves()
    assert data_of([first, second]) == [b"0", b"1", b"2", b"3", b"4"]
    assert first.lane == second.lane == request.lane
