"""The sink: Arrow batches of a task become messages; the driver checks first, workers write.

A task returns only when every one of its messages is confirmed stored, so Spark running it again
after a crash loses nothing: at least once. Never holds a connection outside `write`, because the
writer is pickled on its way to the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from penstock._core.clock import SYSTEM_CLOCK
from penstock._core.workers import ease_collection
from penstock.errors import OptionError, RowError, SchemaError
from penstock.pubsub.client import Client, PubSubClient
from penstock.pubsub.deadletter import letters_of_flawed
from penstock.pubsub.engine import PublishTotals
from penstock.pubsub.options import PubSubSinkOptions
from penstock.pubsub.preflight import check_topics
from penstock.pubsub.publisher import Publisher
from penstock.pubsub.rows import FLAWS, Batch, group, has_ordering_keys, read_batch

# A stream that was read from Pub/Sub can be written back as it is; the service sets these anew.
_IGNORED = ("message_id", "publish_time", "delivery_attempt")
# Spark makes a writer twice per micro-batch, in driver processes that it keeps: a good answer of
# the service holds this long. The tasks notice at once if it no longer does.
_CHECK_SECONDS = 60.0
_CHECKED: dict[PubSubSinkOptions, float] = {}
_EXPECTED = {
    "data": "binary or string",
    "attributes": "map<string,string>",
    "ordering_key": "string",
    "topic": "string",
}


@dataclass(frozen=True)
class PubSubCommitMessage(WriterCommitMessage):
    """What one task has published; picklable."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    dead_lettered: int = 0


class _PubSubWriter:
    """What the streaming and the batch writer share."""

    def __init__(
        self,
        options: PubSubSinkOptions,
        schema: StructType,
        connect: Callable[[PubSubSinkOptions], Client] = PubSubClient,
    ) -> None:
        check_columns(schema, options)
        self._options = options
        self._connect = connect
        self._check_service()

    def _check_service(self) -> None:
        now = SYSTEM_CLOCK.monotonic()
        if now - _CHECKED.get(self._options, -math.inf) < _CHECK_SECONDS:
            return
        client = self._connect(self._options)
        try:
            topics = (self._options.topic, self._options.dead_letter)
            check_topics(client, [name for name in topics if name is not None])
        finally:
            client.close()
        _CHECKED[self._options] = now

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish one partition. Called by Spark in a worker, once per task attempt.

        Raises:
            PenstockError: a row or the service stands in the way; the task has failed.
        """
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return PubSubCommitMessage()
        ease_collection()
        client = self._connect(self._options)
        try:
            publisher = Publisher(client, self._options)
            try:
                totals = self._publish(publisher, first, batches)
            finally:
                publisher.close()
        finally:
            client.close()
        return PubSubCommitMessage(**asdict(totals))

    def _publish(
        self, publisher: Publisher, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
    ) -> PublishTotals:
        options = self._options
        row_count = 0
        current: pa.RecordBatch | None = first
        while current is not None:
            batch = read_batch(current, options.topic, options.project_id)
            if not options.enable_message_ordering and has_ordering_keys(batch.messages):
                raise _ordering_disabled()
            groups = []
            if batch.flaws.any():
                if options.dead_letter is None:
                    raise _row_error(batch, row_count)
                is_flawed = batch.flaws != 0
                groups.append(letters_of_flawed(batch.select(is_flawed), options.dead_letter))
                batch = batch.select(~is_flawed)
            groups += group(batch, is_ordered=options.enable_message_ordering)
            publisher.submit(groups)
            row_count += current.num_rows
            current = next(others, None)
        return publisher.flush()


class PubSubStreamWriter(_PubSubWriter, DataSourceStreamArrowWriter):
    """Writes micro-batches. Spark makes one on the driver for each, and pickles it to the tasks."""


class PubSubBatchWriter(_PubSubWriter, DataSourceArrowWriter):
    """Writes a DataFrame once."""


def check_columns(schema: StructType, options: PubSubSinkOptions) -> None:
    """Check on the driver that the columns are the sink's.

    Raises:
        SchemaError: one is missing, unknown, or of another type.
    """
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        if field.name not in _EXPECTED:
            known = ", ".join(_EXPECTED)
            raise SchemaError(
                "COLUMN_UNKNOWN",
                f"Column '{field.name}' ({field.dataType.simpleString()})",
                f"is not one that the Pub/Sub sink takes: {known}",
                f'Leave it out with .drop("{field.name}"), or put it into data or attributes',
            )
        if not _fits(field.name, field.dataType):
            raise SchemaError(
                "COLUMN_TYPE",
                f"Column '{field.name}'",
                f"its type is {field.dataType.simpleString()}, not {_EXPECTED[field.name]}",
                _cast_remedy(field.name),
            )
    names = schema.fieldNames()
    if "data" not in names:
        raise SchemaError(
            "COLUMN_MISSING",
            "Column 'data'",
            f"is not among the columns: {', '.join(names) or 'there are none'}",
            'Name the payload "data", for example with to_json(struct("*")).alias("data")',
        )
    if options.topic is None and "topic" not in names:
        raise OptionError(
            "OPTION_MISSING",
            f"Option 'topicId' of {options.USE}",
            "is not set, and there is no column 'topic' either",
            'Add .option("topicId", "..."), or a column that names each row\'s topic',
        )


def _fits(name: str, kind: DataType) -> bool:
    if name == "attributes":
        return (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType)
        )
    if name == "data" and isinstance(kind, BinaryType):
        return True
    return isinstance(kind, StringType)


def _cast_remedy(name: str) -> str:
    if name == "data":
        return 'Encode it: to_json("data"), or cast("data" as string)'
    return f"Cast it: cast({name} as {_EXPECTED[name]})"


def _row_error(batch: Batch, rows_before: int) -> RowError:
    position = int(np.flatnonzero(batch.flaws)[0])
    flaw = FLAWS[batch.flaws[position]]
    count = int(np.count_nonzero(batch.flaws))
    more = f" (and {count - 1} more rows near it)" if count > 1 else ""
    return RowError(
        "ROW_REFUSED",
        f"Column '{flaw.column}' in row {rows_before + position} of the partition{more}",
        flaw.fact,
        flaw.remedy,
    )


def _ordering_disabled() -> RowError:
    return RowError(
        "ORDERING_DISABLED",
        "Column 'ordering_key'",
        "has values, but enableMessageOrdering is not set, so their order would be lost",
        'Set .option("enableMessageOrdering", "true"), or drop the column',
    )
