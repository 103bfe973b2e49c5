"""The story of the demo: orders from files go through Spark into Pub/Sub, and come back.

The last chapters, in `changes` and `chain`, go from PostgreSQL to Snowflake. Servers are child
processes, Spark runs in local mode, and all files are in one temporary directory: everything is
gone at the end, also after Ctrl-C. The code shown is the code that runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from google.api_core.exceptions import GoogleAPICallError
from google.cloud import pubsub_v1
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.demo.chain import show_chain
from penstock.demo.changes import show_changes
from penstock.demo.consume import start_totals, watch_totals
from penstock.demo.interruption import Interruption
from penstock.demo.show import Show
from penstock.demo.spark import quiet_spark
from penstock.testing import Fault, PubSubEmulator, pubsub_emulator, snowflake_emulator

PROJECT = "demo"
TOPIC = "projects/demo/topics/orders"
SUBSCRIPTION = "projects/demo/subscriptions/orders-sub"
REFUNDS = "projects/demo/subscriptions/refunds-sub"
SCHEMA = "order_id long, kind string, country string, email string, cents long"
KINDS = {"sale": 80, "refund": 15, "gift": 5}
COUNTRIES = ("DE", "FR", "IT", "JP", "US")

# Each file becomes one micro-batch.
FILES_BEFORE, FILES_AFTER = 4, 2
FAULT_COUNT = 3


@dataclass
class Sent:
    """What the sample orders add up to, to be compared with what comes back."""

    rows: int = 0
    by_kind: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, kind: str, cents: int) -> None:
        """Count one order."""
        self.rows += 1
        count, total = self.by_kind.get(kind, (0, 0))
        self.by_kind[kind] = (count + 1, total + cents)

    def count(self, kind: str) -> int:
        """Give the number of orders of a kind."""
        return self.by_kind.get(kind, (0, 0))[0]


def write_orders(folder: Path, first_id: int, count: int, files: int, sent: Sent) -> None:
    """Write sample orders as files of JSON lines, as another system would drop them."""
    rng = random.Random(first_id)  # noqa: S311 - sample data, the same in every run
    kinds, weights = list(KINDS), list(KINDS.values())
    for number in range(files):
        start, stop = count * number // files, count * (number + 1) // files
        lines = []
        for order_id in range(first_id + start, first_id + stop):
            kind, cents = rng.choices(kinds, weights)[0], rng.randrange(100, 50_000)
            order = {
                "order_id": order_id,
                "kind": kind,
                "country": rng.choice(COUNTRIES),
                "email": f"customer{rng.randrange(1000)}@example.com",
                "cents": cents,
            }
            sent.add(kind, cents)
            lines.append(json.dumps(order) + "\n")
        (folder / f"{first_id:09}-{number}.json").write_text("".join(lines))


def create_resources() -> None:
    """Make topic and subscriptions with Google's own client, unmodified."""
    publisher = pubsub_v1.PublisherClient()
    publisher.create_topic(name=TOPIC)
    subscriber = pubsub_v1.SubscriberClient()
    subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    refunds = {"name": REFUNDS, "topic": TOPIC}
    refunds["filter"] = 'attributes.kind = "refund"'
    subscriber.create_subscription(request=refunds)
    for client in (publisher, subscriber):
        client.transport.close()


def start_stream(spark: SparkSession, folder: Path) -> StreamingQuery:
    """Stream new files into the topic; the checkpoint remembers which ones are done."""
    orders = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(f"{folder}/orders")
        .withColumn("email", F.sha2("email", 256))
    )
    messages = orders.select(
        F.to_json(F.struct("order_id", "cents", "email")).alias("data"),
        F.create_map(F.lit("kind"), "kind").alias("attributes"),
    )
    query = (
        messages.writeStream.format("pubsub")
        .option("projectId", PROJECT)
        .option("topicId", "orders")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    return query  # noqa: RET504 - the lines above are shown, this one is not


def read_back(spark: SparkSession, most: int) -> DataFrame:
    """Look into the subscription; the messages stay there."""
    messages = (
        spark.read.format("pubsub")
        .option("projectId", PROJECT)
        .option("subscriptionId", "orders-sub")
        .option("maxMessages", most)
        .option("maxFetchPeriod", "60s")
        .load()
    )
    text = F.decode("data", "utf-8")
    orders = messages.select(
        "message_id",
        "publish_time",
        F.col("attributes")["kind"].alias("kind"),
        F.from_json(text, "order_id long, cents long").alias("order"),
    )
    return orders  # noqa: RET504 - see above


def watch(show: Show, query: StreamingQuery, emulator: PubSubEmulator, total: int) -> None:
    """Follow a query to its end by what the emulator has stored; list its micro-batches."""
    bar = (
        TextColumn("stored in Pub/Sub"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    before = emulator.topic_counters(TOPIC).published
    with Progress(*bar, console=show.console) as progress:
        task = progress.add_task("", total=total, completed=before)
        while query.isActive:
            progress.update(task, completed=emulator.topic_counters(TOPIC).published)
            # Not a wait inside Spark: Ctrl-C would break its connection in the middle of a call.
            time.sleep(0.2)
        # Raises what ended the query, if it was not the end of the files.
        query.awaitTermination()
        progress.update(task, completed=emulator.topic_counters(TOPIC).published)
    show.table(
        ("micro-batch", "orders", "milliseconds"),
        (
            (report["batchId"], report["numInputRows"], report["durationMs"]["triggerExecution"])
            for report in query.recentProgress
            if report["numInputRows"]
        ),
    )


def compare(show: Show, orders: DataFrame, sent: Sent) -> None:
    """Read everything back once, show some of it, and compare it with what was sent."""
    started = time.monotonic()
    held = orders.cache()
    count = held.count()
    seconds = time.monotonic() - started
    show.line(f"{count:,} messages in {seconds:.1f} s, most of it Spark's start. Three of them:")
    sample = held.orderBy("order.order_id").limit(3).collect()
    show.table(
        ("message_id", "publish_time", "kind", "order_id", "cents"),
        (
            (
                row.message_id,
                f"{row.publish_time:%H:%M:%S.%f}",
                row.kind,
                row.order.order_id,
                row.order.cents,
            )
            for row in sample
        ),
    )
    # At least once: after a failure a message may be there twice, but none may be missing.
    unique = held.select("kind", "order.*").dropDuplicates(["order_id"])
    sums = unique.groupBy("kind").agg(F.count("*").alias("n"), F.sum("cents").alias("cents"))
    found = {row.kind: (row.n, row.cents) for row in sums.collect()}
    show.line("By kind, what the files said and what Pub/Sub holds:")
    show.table(
        ("kind", "orders sent", "read back", "cents sent", "read back"),
        (
            (kind, count, found.get(kind, (0, 0))[0], cents, found.get(kind, (0, 0))[1])
            for kind, (count, cents) in sorted(sent.by_kind.items())
        ),
    )
    show.check(
        f"all {sent.rows:,} orders came back, and their sums match", holds=found == sent.by_kind
    )


def review(show: Show, emulator: PubSubEmulator, sent: Sent) -> None:
    """Show what the emulator counted, and check it."""
    topic = emulator.topic_counters(TOPIC)
    everything, refunds = emulator.counters(SUBSCRIPTION), emulator.counters(REFUNDS)
    show.table(
        ("subscription", "matching", "delivered", "returned", "acked", "still there"),
        (
            (name, it.published, it.delivered, it.nacked, it.acked, it.unacked)
            for name, it in (("orders-sub", everything), ("refunds-sub", refunds))
        ),
    )
    duplicates = topic.published - sent.rows
    requests = emulator.calls().get("Publish", 0)
    show.line(f"{requests:,} publish requests, {duplicates:,} duplicate messages")
    show.check("Pub/Sub stored every message that Spark sent", holds=duplicates >= 0)
    struck = emulator.faults_struck().get("error", 0)
    show.check(f"{struck} failures of Pub/Sub were ridden out", holds=struck == FAULT_COUNT)
    is_intact = everything.unacked == topic.published and everything.outstanding == 0
    show.check("the batch read took nothing away", holds=is_intact and everything.acked == 0)
    show.check(
        f"the filter let {refunds.published:,} refunds through, and nothing else",
        holds=0 <= refunds.published - sent.count("refund") <= duplicates,
    )


def tell(
    show: Show,
    messages: int,
    folder: Path,
    stack: contextlib.ExitStack,
    interruption: Interruption,
) -> bool:
    """Run the whole story; true if the numbers add up."""
    show.step("A Pub/Sub of our own")
    started = time.monotonic()
    emulator = stack.enter_context(pubsub_emulator())
    seconds = time.monotonic() - started
    show.line(f"The embedded emulator serves Google's gRPC API on {emulator.address}")
    show.line(f"after {seconds:.1f} s. PUBSUB_EMULATOR_HOST points to it.")

    show.step("A topic and two subscriptions", "Made with Google's own client, unmodified:")
    show.code(create_resources)
    create_resources()

    # Before Spark: its processes learn from their environment whom to trust.
    snowflake = stack.enter_context(snowflake_emulator())
    show.step("A local Spark")
    started = time.monotonic()
    spark = stack.enter_context(quiet_spark(folder))
    # Spark's own answer to Ctrl-C calls its JVM, perhaps in the middle of another call.
    interruption.listen()
    show.line(f"Spark {spark.version} is up after {time.monotonic() - started:.1f} s.")
    show.line('It found format("pubsub") in the installed package: no jar, no registration.')

    sent = Sent()
    (folder / "orders").mkdir()
    before = messages * FILES_BEFORE // (FILES_BEFORE + FILES_AFTER)
    write_orders(folder / "orders", 0, before, FILES_BEFORE, sent)
    show.step(
        "Stream orders into the topic",
        f"{FILES_BEFORE} files with {before:,} orders wait in a directory. Hide the e-mail "
        "addresses, publish the rest:",
    )
    show.code(start_stream)
    watch(show, start_stream(spark, folder), emulator, before)
    show.line("The first one includes the start of Spark's Python workers.")

    write_orders(folder / "orders", before, messages - before, FILES_AFTER, sent)
    emulator.inject(Fault(kind="error", method="Publish", code="UNAVAILABLE", count=FAULT_COUNT))
    show.step(
        "Run it again, while Pub/Sub fails",
        f"{FILES_AFTER} more files have come; the checkpoint knows that the others are done. The "
        f"emulator answers the first {FAULT_COUNT} requests with UNAVAILABLE:",
    )
    watch(show, start_stream(spark, folder), emulator, messages)

    show.step("Look into the subscription", "A batch read, as from a notebook:")
    show.code(read_back)
    compare(show, read_back(spark, emulator.topic_counters(TOPIC).published), sent)

    show.step("What Pub/Sub counted")
    review(show, emulator, sent)

    show.step("Stream them out again", "A streaming query, with Spark's own aggregation:")
    show.code(start_totals)
    watch_totals(show, spark, start_totals(spark, folder), emulator, SUBSCRIPTION)

    show.step("Changes of a PostgreSQL table")
    connection, url = show_changes(show, spark, folder, stack)

    show.step("The same table in Snowflake", "Which is a local one, too:")
    show_chain(show, spark, folder, connection, url, snowflake)
    return show.verdict()


def run_demo(messages: int, console: Console | None = None) -> bool:
    """Run the demo with so many orders; true if its numbers add up.

    Raises:
        PenstockError: it cannot run here; there is no Java, for example.
    """
    show = Show(console or Console(highlight=False))
    show.title(
        "Orders in files -> Spark -> Pub/Sub -> Spark again; a PostgreSQL table and its changes -> "
        "Spark -> Snowflake. Nothing leaves this machine."
    )
    with contextlib.ExitStack() as stack:
        # Entered first, to end last: an end by Ctrl-C or SIGTERM cleans up like any other.
        interruption = stack.enter_context(Interruption())
        # PySpark warns of versions that the demo does not depend on; so do its workers.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        try:
            is_sound = tell(show, messages, folder, stack, interruption)
        except (PySparkException, GoogleAPICallError) as exc:
            interruption.leave_if_asked()
            show.check(f"the demo ran to its end: {exc}", holds=False)
            return show.verdict()
        interruption.leave_if_asked()
    show.line("Emulators, PostgreSQL, Spark and files are gone. Next, for experiments of your own:")
    show.line(
        "  penstock emulator pubsub\n  penstock options pubsub\n  penstock options postgres_cdc"
    )
    return is_sound
