from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pubsub.agent.reservoir import HeldDelivery, Reservoir
from penstock.pubsub.encoding import ROW_SCHEMA, Received

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def received(
    numbers: list[int], keys: list[str | None] | None = None, seconds: list[int] | None = None
) -> Received:
    texts = [str(n) for n in numbers]
    times = [EPOCH + datetime.timedelta(seconds=s) for s in seconds or [0] * len(numbers)]
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(texts, pa.string()),
            pa.array(times, ROW_SCHEMA.field("publish_time").type),
            pa.array([b"x" * 100] * len(numbers), pa.binary()),
            pa.array([[]] * len(numbers), ROW_SCHEMA.field("attributes").type),
            pa.array(keys or [None] * len(numbers), pa.string()),
            pa.nulls(len(numbers), pa.int32()),
        ],
        schema=ROW_SCHEMA,
    )
    return Received(rows, pa.array([f"ack-{n}" for n in numbers], pa.string()))


def ids(delivery: HeldDelivery) -> list[int]:
    batches = [piece.rows for piece in delivery.pieces if piece.rows is not None]
    return [int(i) for batch in batches for i in batch.column("message_id").to_pylist()]


def acks(parts: list[pa.StringArray]) -> list[int]:
    return [int(a.removeprefix("ack-")) for part in parts for a in part.to_pylist()]


def take(reservoir: Reservoir, tick: int = 1, index: int = 0, **limits: int) -> HeldDelivery:
    given_limits = {"most_rows": 10**9, "most_bytes": 10**12, "tasks": 1, **limits}
    return reservoir.take(tick, index, **given_limits)


def test_messages_come_out_in_the_order_they_came_in() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1, 2, 3]), 0.0, 60.0)
    reservoir.put(received([4, 5]), 0.0, 60.0)

    assert ids(take(reservoir, most_rows=4)) == [1, 2, 3, 4]
    assert ids(take(reservoir, tick=2)) == [5]


def test_the_first_task_of_a_batch_gets_its_share_only() -> None:
    reservoir = Reservoir()
    reservoir.put(received(list(range(10))), 0.0, 60.0)

    shares = [ids(take(reservoir, index=index, tasks=3)) for index in range(3)]

    assert shares == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_task_stops_at_its_bytes() -> None:
    reservoir = Reservoir()
    for number in range(10):
        reservoir.put(received([number]), 0.0, 60.0)
    size = reservoir.total_bytes // 10

    assert ids(take(reservoir, most_bytes=size * 3)) == [0, 1, 2]


def test_a_read_that_was_broken_off_goes_back_to_the_front() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1, 2, 3, 4]), 0.0, 60.0)
    first = take(reservoir, most_rows=2)

    assert reservoir.put_back(first.number)
    assert ids(take(reservoir, tick=2)) == [1, 2, 3, 4]


def test_what_was_read_to_its_end_does_not_go_back() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1]), 0.0, 60.0)
    delivery = take(reservoir)
    reservoir.end_read(delivery.number)

    assert not reservoir.put_back(delivery.number)
    assert acks(reservoir.ack_ids(delivery.number)) == [1]
    reservoir.settle(delivery.number)
    assert reservoir.ack_ids(delivery.number) == []


def test_a_task_that_comes_again_gets_the_same_messages() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1, 2, 3, 4]), 0.0, 60.0)
    first = take(reservoir, index=0, most_rows=2)
    reservoir.end_read(first.number)
    reservoir.put(received([5]), 0.0, 60.0)

    again = take(reservoir, index=0)
    other = take(reservoir, index=1)

    assert again.number == first.number
    assert (ids(again), ids(other)) == ([1, 2], [3, 4, 5])
    # A second read that is broken off leaves the delivery to the first.
    assert not reservoir.put_back(again.number)
    assert acks(reservoir.ack_ids(first.number)) == [1, 2]


def test_a_task_that_got_nothing_gets_nothing_again() -> None:
    reservoir = Reservoir()
    empty = take(reservoir)
    reservoir.end_read(empty.number)
    reservoir.put(received([1]), 0.0, 60.0)

    assert ids(take(reservoir)) == []


def test_messages_go_back_when_the_last_of_two_reads_is_broken_off() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1]), 0.0, 60.0)
    first, second = take(reservoir), take(reservoir)

    assert not reservoir.put_back(first.number)
    assert reservoir.put_back(second.number)
    assert reservoir.state().buffered_rows == 1


def test_memory_counts_until_it_is_settled() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1, 2]), 0.0, 60.0)
    full = reservoir.total_bytes
    delivery = take(reservoir)
    reservoir.end_read(delivery.number)

    assert reservoir.total_bytes == full > 200
    reservoir.settle(delivery.number)
    assert reservoir.total_bytes == 0


def test_a_batch_takes_only_a_part_of_what_may_be_held() -> None:
    reservoir = Reservoir(most_bytes_per_batch=1)
    reservoir.put(received(list(range(100))), 0.0, 60.0)
    size = reservoir.total_bytes
    limited = Reservoir(most_bytes_per_batch=size // 4)
    limited.put(received(list(range(100))), 0.0, 60.0)

    shares = [len(ids(take(limited, index=index, tasks=2))) for index in range(2)]

    assert sum(shares) == pytest.approx(25, abs=2)


def test_what_no_task_has_got_can_be_given_away() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1, 2, 3]), 0.0, 60.0)
    take(reservoir, most_rows=1)

    assert acks(reservoir.release()) == [2, 3]
    state = reservoir.state()
    assert (state.buffered_rows, state.buffered_bytes, state.held_rows) == (0, 0, 1)


def test_the_oldest_message_is_known() -> None:
    reservoir = Reservoir()
    assert reservoir.state().oldest_at is None
    reservoir.put(received([1]), 5.0, 60.0)
    reservoir.put(received([2]), 9.0, 60.0)
    first = take(reservoir, most_rows=1)
    assert reservoir.state().oldest_at == 5.0
    reservoir.settle(first.number)
    assert reservoir.state().oldest_at == 9.0


def test_messages_of_one_key_go_to_one_task_of_a_batch_in_their_order() -> None:
    reservoir = Reservoir(is_ordered=True)
    reservoir.put(received([1, 2, 3, 4, 5, 6], ["a", "b", "a", None, "b", "a"]), 0.0, 60.0)

    first = ids(take(reservoir, index=0, most_rows=2))
    second = ids(take(reservoir, index=1))

    assert (first, second) == ([1, 2], [4])
    assert ids(take(reservoir, tick=2)) == [3, 5, 6]


def test_draining_hands_out_only_what_was_published_before() -> None:
    cutoff = int((EPOCH + datetime.timedelta(seconds=10)).timestamp() * 1e6)
    reservoir = Reservoir(cutoff_us=cutoff)

    assert reservoir.put(received([1, 2, 3], seconds=[5, 15, 9]), 0.0, 60.0) == 2
    assert ids(take(reservoir)) == [1, 3]
    assert sorted(acks(reservoir.drain())) == [1, 2, 3]


def test_every_lease_is_found_when_it_is_due() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1, 2, 3]), 0.0, 60.0)
    reservoir.put(received([4]), 0.0, 90.0)
    take(reservoir, most_rows=1)

    due = reservoir.due(before=61.0)

    assert sorted(acks([piece.ack_ids for piece in due])) == [1, 2, 3]


def test_what_was_not_prolonged_is_forgotten_unless_a_task_has_it() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1]), 0.0, 10.0)
    taken = take(reservoir)
    reservoir.put(received([2, 3]), 0.0, 10.0)
    reservoir.put(received([4]), 0.0, 20.0)
    size = reservoir.total_bytes

    assert reservoir.expire(10.0) == 0
    assert reservoir.expire(10.5) == 2
    assert reservoir.total_bytes < size
    assert reservoir.state().buffered_rows == 1
    assert ids(take(reservoir, tick=2)) == [4]
    assert not reservoir.is_leased(taken.number, 10.5)


def test_a_delivery_is_late_when_it_was_read_and_its_leases_end() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1]), 0.0, 10.0)
    taken = take(reservoir)
    assert reservoir.late(11.0) == []
    reservoir.end_read(taken.number)
    assert [delivery.number for delivery in reservoir.late(11.0)] == [taken.number]
    assert reservoir.late(9.0) == []
    reservoir.settle(taken.number)
    assert reservoir.late(11.0) == []


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_message_is_ever_lost_or_held_twice(data: st.DataObject) -> None:
    """Whatever tasks do, every message is in the buffer, in a delivery, or settled; once."""
    is_ordered = data.draw(st.booleans())
    reservoir = Reservoir(is_ordered=is_ordered)
    put = settled = 0
    open_deliveries: list[HeldDelivery] = []
    for tick in range(1, data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["put", "take", "back", "end", "settle"]))
        if action == "put":
            count = data.draw(st.integers(1, 9))
            keys = data.draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
            reservoir.put(received(list(range(put, put + count)), list(keys)), 0.0, 60.0)
            put += count
        elif action == "take":
            limits = {
                "most_rows": data.draw(st.integers(1, 9)),
                "tasks": data.draw(st.integers(1, 3)),
            }
            index = data.draw(st.integers(0, 2))
            taken = take(reservoir, tick // 3, index, **limits)
            if taken not in open_deliveries:
                open_deliveries.append(taken)
        elif open_deliveries:
            chosen = open_deliveries[data.draw(st.integers(0, len(open_deliveries) - 1))]
            if action == "back" and reservoir.put_back(chosen.number):
                open_deliveries.remove(chosen)
            elif action == "end":
                reservoir.end_read(chosen.number)
            elif action == "settle":
                settled += len(acks(reservoir.ack_ids(chosen.number)))
                reservoir.settle(chosen.number)
                open_deliveries.remove(chosen)
        state = reservoir.state()
        assert state.buffered_rows + state.held_rows + settled == put
    left = acks(reservoir.drain())
    assert len(left) == len(set(left)) == put - settled
    assert reservoir.total_bytes == 0


def test_a_part_keeps_the_order() -> None:
    reservoir = Reservoir()
    reservoir.put(received([1, 2, 3]), 0.0, 60.0)
    piece = take(reservoir).pieces[0]

    assert acks([piece.part(np.array([True, False, True])).ack_ids]) == [1, 3]
