"""One task of a micro-batch: fetches its rows from the executor's agent; runs in workers.

Stateless: all that it needs is in the partition, which Spark pickles to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyarrow import flight
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from penstock._core.workers import ease_collection
from penstock.errors import AgentError
from penstock.pubsub.agent.config import AgentConfig
from penstock.pubsub.agent.launcher import agent_client
from penstock.pubsub.agent.server import Fetch, delivery_number
from penstock.pubsub.source.columns import Columns


@dataclass
class PubSubPartition(InputPartition):
    """One task's part of one batch; picklable."""

    config: AgentConfig
    columns: Columns
    tick: int
    index: int
    most_rows: int
    most_bytes: int
    tasks: int


def read_partition(partition: PubSubPartition) -> Iterator[pa.RecordBatch]:
    """Give a task its rows.

    Raises:
        AgentError: the agent does not start, or cannot go on.
    """
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    client = agent_client(replace(partition.config, parent=os.getppid()))
    ease_collection()
    fetch = Fetch(
        partition.tick,
        partition.index,
        attempt,
        partition.most_rows,
        partition.most_bytes,
        partition.tasks,
    )
    try:
        reader = client.do_get(fetch.ticket())
        try:
            number = delivery_number(reader.schema)
            for chunk in reader:
                yield partition.columns.convert(chunk.data.replace_schema_metadata(None))
        except GeneratorExit:
            # Spark wants no more: the agent shall know now, not when this worker is gone.
            reader.cancel()
            raise
        if number:
            list(client.do_action(flight.Action("complete", str(number).encode())))
    except flight.FlightError as exc:
        raise AgentError(
            "AGENT",
            f"The Pub/Sub agent of executor process {os.getppid()}",
            f"failed: {str(exc).split('. Detail:')[0]}",
            "The task is run again by Spark; if it fails for good, see the message",
        ) from exc
