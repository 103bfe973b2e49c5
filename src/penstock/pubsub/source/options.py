"""Options of the streaming source; parsed on the driver, carried to the agents; pure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import OptionError
from penstock.options import BOOLEAN, Parser, choice, duration, integer, opt, size
from penstock.pubsub.options import PubSubConnectionOptions, full_name

if TYPE_CHECKING:
    from penstock.pubsub.source.columns import Columns


def parse_moment(text: str) -> datetime.datetime:
    """Read RFC 3339 or milliseconds since the epoch.

    Raises:
        ValueError: it is neither.
    """
    if text.strip().isdecimal():
        return datetime.datetime.fromtimestamp(int(text) / 1000, datetime.UTC)
    moment = datetime.datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


def _parse_timestamp(value: str) -> str:
    try:
        parse_moment(value)
    except (ValueError, OverflowError, OSError):
        raise ValueError("a time with its zone (RFC 3339), or milliseconds") from None
    return value


TIMESTAMP = Parser("timestamp", _parse_timestamp)


def _parse_location(value: str) -> str:
    scheme, mark, rest = value.partition("://")
    if (mark and (scheme not in _SCHEMES or not rest)) or not value.strip():
        raise ValueError(f"a directory, or one of {', '.join(f'{s}://' for s in _SCHEMES)}")
    return value


_SCHEMES = ("file", "gs", "s3", "s3a", "az", "abfs", "abfss")
SPOOL_LOCATION = Parser("location", _parse_location)


@dataclass(frozen=True, kw_only=True)
class PubSubSourceOptions(PubSubConnectionOptions):
    """Options of the streaming read."""

    USE: ClassVar[str] = 'spark.readStream.format("pubsub")'

    subscription_id: str = opt(
        "Subscription to read, a short id or a full name. Messages are acknowledged when Spark "
        "has committed the batch they were in.",
        example="orders-sub",
    )
    topic_id: str | None = opt(
        "Topic of the subscription, a short id or a full name: with it, a missing subscription is "
        "created.",
        default=None,
        example="orders",
    )
    delete_subscription_on_stream_stop: bool = opt(
        "Delete the subscription when the query is stopped. A query that fails, or whose driver "
        "dies, leaves it.",
        BOOLEAN,
        default=False,
    )
    starting_position: str = opt(
        "Where a query without a checkpoint begins: with what the subscription has (none), with "
        "the oldest message that is retained (earliest), at startingTimestamp, or at "
        "startingSnapshot. A seek moves the subscription for all of its readers.",
        choice("none", "earliest", "timestamp", "snapshot"),
        default="none",
    )
    starting_timestamp: str | None = opt(
        "For startingPosition=timestamp: RFC 3339, or milliseconds since the epoch.",
        TIMESTAMP,
        default=None,
        example="2026-11-15T06:30:00Z",
    )
    starting_snapshot: str | None = opt(
        "For startingPosition=snapshot: a snapshot's short id or full name.",
        default=None,
        example="before-release",
    )
    timestamp_attribute: str | None = opt(
        "Attribute that holds the event's time, as milliseconds since the epoch or RFC 3339. "
        "Adds a column event_time for watermarks; it is null where the attribute is absent or is "
        "neither.",
        default=None,
        example="created_at",
    )
    schema_style: str = opt(
        "`databricks` gives the columns of that connector: messageId, payload, attributes (JSON "
        "text) and publishTimestampInMillis.",
        choice("penstock", "databricks"),
        default="penstock",
    )
    num_partitions: int | None = opt(
        "Most tasks of one micro-batch. Without it, and at most: twice the cores of the executors.",
        integer(1, 10_000),
        default=None,
        aliases=("numFetchPartitions",),
    )
    max_rows_per_trigger: int | None = opt(
        "Most messages in one micro-batch.", integer(1), default=None
    )
    max_bytes_per_trigger: int | None = opt(
        "About the most bytes in one micro-batch; a task stops at the message that exceeds its "
        "share.",
        size(1),
        default=None,
    )
    max_records_per_fetch: int | None = opt(
        "Most messages that one task of a micro-batch takes.", integer(1), default=None
    )
    max_fetch_period: float | None = opt(
        "Taken from code that moves over from Databricks' connector. A task never waits for "
        "messages here: it takes what its executor has pulled already, which keeps any such bound.",
        duration(0.0),
        default=None,
        advanced=True,
    )
    min_rows_per_trigger: int | None = opt(
        "Wait until so many messages are buffered on all executors before a micro-batch starts, "
        "but not longer than maxTriggerDelay.",
        integer(1),
        default=None,
    )
    max_trigger_delay: float = opt(
        "Longest wait for minRowsPerTrigger.", duration(0.0), default=900.0, advanced=True
    )
    spool_location: str | None = opt(
        "Makes the source exactly-once: each task's rows are kept in this directory or object "
        "store (gs://, s3://, az://) until they are committed and acknowledged. Driver and "
        "executors must reach it; a directory is for one machine or a shared disk. One query, one "
        "location.",
        SPOOL_LOCATION,
        default=None,
        example="gs://my-bucket/spool/orders",
    )
    suspect_duration: float = opt(
        "With a spool: how long after a failure messages that were spooled are looked out for, in "
        "case they come again.",
        duration(60.0),
        default=1200.0,
        advanced=True,
    )
    streams_per_executor: int = opt(
        "StreamingPull connections of each executor. The service carries about 10 MB/s on one.",
        integer(1, 100),
        default=4,
    )
    stream_quota: int = opt(
        "Most StreamingPull connections that all executors together may open; the query fails "
        "when there are more. The service has a quota for each region.",
        integer(1),
        default=10_000,
        advanced=True,
    )
    metrics_port: int | None = opt(
        "Serve the source's measurements for Prometheus on this port of the driver machine; 0 "
        "takes a free one, which the log names.",
        integer(0, 65_535),
        default=None,
        advanced=True,
    )
    max_outstanding_messages: int = opt(
        "Most messages that an executor holds: buffered, or in a batch that is not committed. It "
        "has to cover more than one micro-batch, or pulling stops while Spark works.",
        integer(1),
        default=400_000,
        advanced=True,
    )
    max_outstanding_bytes: int = opt(
        "The same in bytes; also bounds the memory of the executor's agent.",
        size(1),
        default=400_000_000,
        advanced=True,
    )
    lease_duration: float = opt(
        "How long the service leaves a message with us between two extensions. Leases are "
        "extended for as long as a batch runs; this is how long messages of a lost executor take "
        "to come again.",
        duration(10.0, 600.0),
        default=60.0,
        advanced=True,
    )
    jitter: float = opt(
        "Agents wait a random part of this before they connect, so that a large cluster does not "
        "do so at once.",
        duration(0.0, 60.0),
        default=0.5,
        advanced=True,
    )
    coordinator_host: str | None = opt(
        "Name or address of the driver machine as executors reach it; found out without it.",
        default=None,
        advanced=True,
    )
    coordinator_timeout: float = opt(
        "An agent that cannot reach the driver for so long hands its messages back and ends.",
        duration(1.0, 3600.0),
        default=5.0,
        advanced=True,
    )
    ack_ttl_batches: int = opt(
        "The driver stops waiting for an agent's word on acknowledgements after so many batches.",
        integer(1),
        default=100,
        advanced=True,
    )

    @property
    def subscription(self) -> str:
        """The subscription's full name."""
        return full_name("subscriptions", self.subscription_id, self.project_id)

    @property
    def topic(self) -> str | None:
        """The topic's full name."""
        if self.topic_id is None:
            return None
        return full_name("topics", self.topic_id, self.project_id)

    @property
    def snapshot(self) -> str:
        """The snapshot's full name."""
        return full_name("snapshots", self.starting_snapshot or "", self.project_id)

    @property
    def columns(self) -> Columns:
        """The columns that the query sees."""
        # Not at the top: the command line lists these options without the extra.
        from penstock.pubsub.source.columns import Columns

        return Columns(self.schema_style == "databricks", self.timestamp_attribute)

    @property
    def starting_time(self) -> datetime.datetime:
        """The moment to start at."""
        return parse_moment(self.starting_timestamp or "")

    def check(self) -> None:
        """Check names and limits; see also the connection's rules."""
        super().check()
        if self.topic_id is not None:
            self.complete("topics", "topicId", self.topic_id)
        if self.starting_snapshot is not None:
            self.complete("snapshots", "startingSnapshot", self.starting_snapshot)
        for word, name, value in (
            ("timestamp", "startingTimestamp", self.starting_timestamp),
            ("snapshot", "startingSnapshot", self.starting_snapshot),
        ):
            if (self.starting_position == word) != (value is not None):
                raise OptionError(
                    "OPTION_CONFLICT",
                    f"Options 'startingPosition' and '{name}' of {self.USE}",
                    "one of them is set without the other",
                    f"Set startingPosition={word} together with {name}, or neither",
                )
        self.complete("subscriptions", "subscriptionId", self.subscription_id)
        most, least = self.max_rows_per_trigger, self.min_rows_per_trigger
        if most is not None and least is not None and least > most:
            raise OptionError(
                "OPTION_CONFLICT",
                f"Options 'minRowsPerTrigger' and 'maxRowsPerTrigger' of {self.USE}",
                f"the least, {least}, is above the most, {most}",
                "Lower minRowsPerTrigger",
            )
