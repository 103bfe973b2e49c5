"""The sink's writer without Spark: columns, rows, and what a task does with its client."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import ConnectError, OptionError, RowError, SchemaError
from penstock.pubsub import writer as writer_module
from penstock.pubsub.client import PubSubClient
from penstock.pubsub.options import PubSubSinkOptions
from penstock.pubsub.writer import (
    PubSubBatchWriter,
    PubSubCommitMessage,
    PubSubStreamWriter,
    check_columns,
)
from tests.support.publish_server import PublishServer, publish_server

TEXT_MAP = MapType(StringType(), StringType())
DATA = StructType([StructField("data", BinaryType())])


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def sink(**raw: str) -> PubSubSinkOptions:
    return PubSubSinkOptions.parse({"projectId": "p", "endpoint": "127.0.0.1:9", **raw})


@pytest.fixture
def server() -> Iterator[PublishServer]:
    with publish_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    writer_module._CHECKED.clear()


def writer(server: PublishServer, columns: StructType = DATA, **raw: str) -> PubSubBatchWriter:
    # The server knows Publish alone: the driver's questions go unanswered, which is no "no".
    options = sink(**{"topicId": "orders", "endpoint": server.address, **raw})
    writer_module._CHECKED[options] = float("inf")
    return PubSubBatchWriter(options, columns)


@pytest.mark.parametrize("kind", [BinaryType(), StringType()])
def test_data_is_binary_or_string(kind: DataType) -> None:
    check_columns(schema(data=kind), sink(topicId="orders"))


def test_all_columns_of_a_read_are_taken_so_that_a_stream_can_be_passed_on() -> None:
    columns = schema(
        message_id=StringType(),
        publish_time=TimestampType(),
        data=BinaryType(),
        attributes=TEXT_MAP,
        ordering_key=StringType(),
        delivery_attempt=IntegerType(),
    )
    check_columns(columns, sink(topicId="orders"))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (schema(value=StringType()), "Column 'value' (string): is not one that"),
        (schema(Data=StringType()), "Column 'Data' (string)"),
        (schema(data=LongType()), "Column 'data': its type is bigint, not binary or string"),
        (schema(data=StringType(), attributes=StringType()), "its type is string, not map"),
        (
            schema(data=StringType(), attributes=MapType(StringType(), LongType())),
            "its type is map<string,bigint>, not map<string,string>",
        ),
        (schema(data=StringType(), ordering_key=LongType()), "Column 'ordering_key'"),
        (schema(data=StringType(), topic=BinaryType()), "Column 'topic'"),
        (schema(attributes=TEXT_MAP), "Column 'data': is not among the columns: attributes"),
        (schema(), "there are none"),
    ],
)
def test_a_column_that_does_not_fit_is_a_schema_error(columns: StructType, text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        check_columns(columns, sink(topicId="orders"))
    assert text in str(caught.value)


def test_a_topic_comes_from_the_option_or_from_a_column() -> None:
    with pytest.raises(OptionError, match=r"topicId.*no column 'topic'"):
        check_columns(DATA, sink())
    check_columns(schema(data=StringType(), topic=StringType()), sink())


def test_the_writer_is_picklable_and_writes_what_it_gets(server: PublishServer) -> None:
    made = pickle.loads(pickle.dumps(writer(server)))  # noqa: S301 - our own bytes
    batches = [pa.record_batch({"data": [b"a", b"b"]}), pa.record_batch({"data": [b"c"]})]
    message = made.write(iter(batches))
    assert sorted(one.data for one in server.stored) == [b"a", b"b", b"c"]
    assert isinstance(message, PubSubCommitMessage)
    assert (message.messages, message.retries, message.dead_lettered) == (3, 0, 0)
    assert message.bytes > 0
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - our own bytes


def test_stream_and_batch_writers_share_one_implementation() -> None:
    assert PubSubStreamWriter.write is PubSubBatchWriter.write


class CountingClient(PubSubClient):
    opened: int = 0
    closed: int = 0

    def __init__(self, options: PubSubSinkOptions) -> None:
        super().__init__(options)
        CountingClient.opened += 1

    def close(self) -> None:
        CountingClient.closed += 1
        super().close()


@pytest.fixture
def counting() -> type[CountingClient]:
    CountingClient.opened = CountingClient.closed = 0
    return CountingClient


def test_an_empty_partition_opens_no_connection(
    server: PublishServer, counting: type[CountingClient]
) -> None:
    made = writer(server)
    made._connect = counting
    assert made.write(iter([])) == PubSubCommitMessage()
    assert made.write(iter([pa.record_batch({"data": pa.array([], pa.binary())})])).messages == 0
    assert counting.opened == 0


def test_the_connection_is_closed_also_on_failure(
    server: PublishServer, counting: type[CountingClient]
) -> None:
    made = writer(server)
    made._connect = counting
    made.write(iter([pa.record_batch({"data": [b"x"]})]))
    with pytest.raises(RowError):
        made.write(iter([pa.record_batch({"data": [b""]})]))

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"data": [b"x"]})
        raise OSError("upstream")

    with pytest.raises(OSError, match="upstream"):
        made.write(broken())
    assert counting.opened == counting.closed == 3


def test_a_bad_row_is_named_before_anything_of_its_batch_is_published(
    server: PublishServer,
) -> None:
    rows = [b"good"] * 5
    second = [b"good", b"x" * 10_000_001, b"good", b""]
    batches = [pa.record_batch({"data": rows}), pa.record_batch({"data": second})]
    with pytest.raises(RowError) as caught:
        writer(server, linger="60s").write(iter(batches))
    assert "Column 'data' in row 6 of the partition (and 1 more rows near it)" in str(caught.value)
    assert "deadLetterTopic" in str(caught.value)
    assert len(server.stored) <= 5


def test_bad_rows_go_to_the_dead_letter_topic_and_good_ones_to_theirs(
    server: PublishServer,
) -> None:
    batch = pa.record_batch({"data": [b"one", b"", b"two", b"x" * 10_000_001]})
    message = writer(server, deadLetterTopic="refused").write(iter([batch]))
    assert (message.messages, message.dead_lettered) == (2, 2)
    by_topic: dict[str, list[Any]] = {}
    for request in server.requests:
        by_topic.setdefault(request.topic, []).extend(request.messages)
    assert [one.data for one in by_topic["projects/p/topics/orders"]] == [b"one", b"two"]
    letters = by_topic["projects/p/topics/refused"]
    assert [len(one.data) for one in letters] == [0, 9_000_000]


def test_an_ordering_key_without_the_option_is_an_error(server: PublishServer) -> None:
    batch = pa.record_batch({"data": [b"x", b"y"], "ordering_key": [None, "k"]})
    columns = schema(data=BinaryType(), ordering_key=StringType())
    with pytest.raises(RowError, match="enableMessageOrdering"):
        writer(server, columns, deadLetterTopic="refused").write(iter([batch]))
    assert server.requests == []
    without = pa.record_batch({"data": [b"x", b"y"], "ordering_key": pa.array([None, ""])})
    assert writer(server, columns).write(iter([without])).messages == 2


def test_rows_are_routed_by_their_topic(server: PublishServer) -> None:
    columns = schema(data=BinaryType(), topic=StringType())
    options = sink(endpoint=server.address)
    writer_module._CHECKED[options] = float("inf")
    batch = pa.record_batch(
        {"data": [b"1", b"2", b"3"], "topic": ["aaa", "projects/q/topics/bbb", "aaa"]}
    )
    PubSubBatchWriter(options, columns).write(iter([batch]))
    found = {request.topic: [one.data for one in request.messages] for request in server.requests}
    assert found == {"projects/p/topics/aaa": [b"1", b"3"], "projects/q/topics/bbb": [b"2"]}


def test_the_driver_asks_the_service_once_a_minute_at_most(
    monkeypatch: pytest.MonkeyPatch, counting: type[CountingClient]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(
        writer_module, "check_topics", lambda client, topics: asked.append(list(topics))
    )
    options = sink(topicId="orders", deadLetterTopic="refused")
    for _ in range(3):
        PubSubStreamWriter(options, DATA, counting)
    assert asked == [["projects/p/topics/orders", "projects/p/topics/refused"]]
    assert counting.opened == counting.closed == 1


def test_a_failed_question_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, counting: type[CountingClient]
) -> None:
    def refuse(client: Any, topics: Any) -> None:
        raise ConnectError("X", "x", "x", "x")

    monkeypatch.setattr(writer_module, "check_topics", refuse)
    for _ in range(2):
        with pytest.raises(ConnectError):
            PubSubStreamWriter(sink(topicId="orders"), DATA, counting)
    assert counting.opened == counting.closed == 2
