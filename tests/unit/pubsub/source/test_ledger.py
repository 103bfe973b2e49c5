from __future__ import annotations

from penstock.pubsub.source.ledger import Delivery, Ledger, Settlement


def delivery(number: int, *, agent: str = "a", tick: int = 1, index: int = 0) -> Delivery:
    return Delivery(agent, number, tick, index, attempt=number, rows=10)


def test_the_only_complete_delivery_of_a_committed_batch_is_acked() -> None:
    ledger = Ledger()
    assert ledger.deliver(delivery(1))
    assert ledger.complete("a", 1)

    assert ledger.commit(1) == {"a": Settlement(ack=[1])}


def test_two_complete_attempts_of_one_task_are_both_handed_back() -> None:
    """Nobody can know which of them reached the sink: the loss trap."""
    ledger = Ledger()
    ledger.deliver(delivery(1, agent="a"))
    ledger.complete("a", 1)
    ledger.deliver(delivery(1, agent="b"))
    ledger.complete("b", 1)

    assert ledger.commit(1) == {"a": Settlement(nack=[1]), "b": Settlement(nack=[1])}


def test_an_empty_retry_on_another_executor_keeps_the_first_attempt_from_being_acked() -> None:
    ledger = Ledger()
    ledger.deliver(delivery(1, agent="a"))
    ledger.complete("a", 1)
    empty = Delivery("b", 1, tick=1, index=0, attempt=2, rows=0)
    ledger.deliver(empty)
    ledger.complete("b", 1)

    assert ledger.commit(1)["a"] == Settlement(nack=[1])


def test_a_delivery_that_was_not_read_to_its_end_is_handed_back() -> None:
    ledger = Ledger()
    ledger.deliver(delivery(1))
    ledger.deliver(delivery(2, index=1))
    ledger.complete("a", 2)

    assert ledger.commit(1) == {"a": Settlement(ack=[2], nack=[1])}


def test_nothing_of_a_later_batch_is_settled() -> None:
    ledger = Ledger()
    ledger.deliver(delivery(1, tick=1))
    ledger.complete("a", 1)
    ledger.deliver(delivery(2, tick=2))
    ledger.complete("a", 2)

    assert ledger.commit(1) == {"a": Settlement(ack=[1])}
    assert ledger.open_count == 1
    assert ledger.rows_of(2) == 10


def test_a_delivery_for_a_batch_that_is_over_is_refused() -> None:
    ledger = Ledger()
    ledger.commit(3)

    assert not ledger.deliver(delivery(1, tick=3))
    assert not ledger.complete("a", 1)
    assert ledger.open_count == 0


def test_a_delivery_that_was_given_back_is_not_settled() -> None:
    ledger = Ledger()
    ledger.deliver(delivery(1))
    ledger.give_back("a", 1)

    assert ledger.rows_of(1) == 0
    assert ledger.commit(1) == {}


def test_tables_are_empty_when_all_is_confirmed() -> None:
    ledger = Ledger()
    for tick in range(1, 2001):
        ledger.deliver(delivery(tick, tick=tick))
        ledger.complete("a", tick)
        for agent, order in ledger.commit(tick).items():
            ledger.settled(agent, [*order.ack, *order.nack])

    assert (ledger.open_count, ledger.settling_count, len(ledger._rows_by_tick)) == (0, 0, 0)


def test_an_order_that_is_never_confirmed_is_forgotten_after_some_batches() -> None:
    ledger = Ledger()
    ledger.deliver(delivery(1))
    ledger.commit(1)

    assert ledger.expire(5, batches=5) == 0
    assert ledger.expire(6, batches=5) == 1
    assert ledger.settling_count == 0


def test_a_lost_agent_leaves_nothing_behind() -> None:
    ledger = Ledger()
    ledger.deliver(delivery(1, tick=1))
    ledger.commit(1)
    ledger.deliver(delivery(2, tick=2))
    ledger.deliver(delivery(1, agent="b", tick=2))
    ledger.drop_agent("a")

    assert (ledger.open_count, ledger.settling_count, ledger.rows_of(2)) == (1, 0, 10)


def test_an_attempt_counts_though_its_agent_is_gone() -> None:
    """The attempt on b may have reached the sink: then nobody else has what a read."""
    ledger = Ledger()
    ledger.deliver(delivery(1, agent="a"))
    ledger.complete("a", 1)
    ledger.deliver(delivery(1, agent="b"))
    ledger.complete("b", 1)
    ledger.drop_agent("b")

    assert ledger.commit(1) == {"a": Settlement(nack=[1])}


def test_rows_that_were_read_twice_are_counted() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.deliver(Delivery("a", number, 1, 0, number, 5))
        ledger.complete("a", number)
    ledger.deliver(Delivery("a", 3, 1, 1, 3, 7))
    ledger.complete("a", 3)
    ledger.commit(1)
    assert ledger.repeated_rows == 10
