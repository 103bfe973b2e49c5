"""The batch read, a look into a subscription; plans on the driver, reads in a worker.

One partition, because the service hands out messages to whoever asks: more readers would see less
each, not more together. Never consumes a message; see `peek`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import SchemaError
from penstock.pubsub.client import Client, PubSubClient
from penstock.pubsub.encoding import ROW_SCHEMA, SPARK_DDL
from penstock.pubsub.filters import is_supported, keep
from penstock.pubsub.options import PubSubReadOptions
from penstock.pubsub.peek import Peek
from penstock.pubsub.preflight import check_subscription


@dataclass
class PubSubInputPartition(InputPartition):
    """What the worker has to know of the subscription; picklable."""

    ack_deadline_seconds: int


class PubSubBatchReader(DataSourceReader):
    """Reads what a subscription holds now, and leaves it there."""

    def __init__(
        self,
        options: PubSubReadOptions,
        schema: StructType,
        connect: Callable[[PubSubReadOptions], Client] = PubSubClient,
    ) -> None:
        if schema.fieldNames() != ROW_SCHEMA.names:
            raise SchemaError(
                "SCHEMA_FIXED",
                f"The schema {schema.simpleString()}",
                f"a read of Pub/Sub always has the columns: {SPARK_DDL}",
                "Leave out .schema(...), and select from `data` after the load",
            )
        self._options = options
        self._connect = connect
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Check the subscription, on the driver, before any job.

        Raises:
            PenstockError: it does not exist, or cannot be pulled from.
        """
        client = self._connect(self._options)
        try:
            return [PubSubInputPartition(check_subscription(client, self._options.subscription))]
        finally:
            client.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the messages as batches. Called by Spark in a worker, once per task attempt.

        Raises:
            PenstockError: the service refused, or could not be reached.
        """
        assert isinstance(partition, PubSubInputPartition)  # noqa: S101 - made above
        client = self._connect(self._options)
        try:
            batches = Peek(client, self._options, partition.ack_deadline_seconds).collect()
        finally:
            client.close()
        for batch in batches:
            passed = keep(self._filters, batch)
            if passed.num_rows:
                yield passed


class PubSubPushdownReader(PubSubBatchReader):
    """The same, taking over filters; only where Spark asks, for it refuses this method else."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that can be applied to Arrow columns; give the others back."""
        self._filters = [pushed for pushed in filters if is_supported(pushed)]
        return [pushed for pushed in filters if not is_supported(pushed)]
