"""The source's measurements, for Spark's progress and for Prometheus; runs on the driver.

What the service does not tell is not invented: there is no backlog here, only what agents hold.
"""

from __future__ import annotations

import time
from typing import Any

from penstock._core.metrics import Metric, render
from penstock.pubsub.source.agents import Overview
from penstock.pubsub.source.spool_ledger import SpoolFigures

# name in the progress -> (name for Prometheus, kind, meaning)
METRICS: dict[str, Metric] = {
    "agents": ("agents", "gauge", "Executors' agents that are connected."),
    "streams": ("streams", "gauge", "Open StreamingPull connections."),
    "bufferedMessages": ("buffered_messages", "gauge", "Pulled and not yet handed to a task."),
    "bufferedBytes": ("buffered_bytes", "gauge", "The same in bytes."),
    "unackedMessages": ("unacked_messages", "gauge", "Pulled and not yet acknowledged."),
    "oldestUnackedSeconds": ("oldest_unacked_seconds", "gauge", "Age here of the oldest of them."),
    "received": ("received_total", "counter", "Messages received."),
    "redelivered": (
        "redelivered_total",
        "counter",
        "Received again, as far as the service tells (with a dead-letter policy).",
    ),
    "dropped": (
        "dropped_total",
        "counter",
        "Received again though they were in the spool; acknowledged and dropped.",
    ),
    "acked": ("acked_total", "counter", "Messages acknowledged."),
    "nacked": ("nacked_total", "counter", "Messages handed back."),
    "ackFailures": ("ack_failures_total", "counter", "Acknowledgements refused or given up."),
    "backoffs": ("backoffs_total", "counter", "Waits before a call or stream was tried again."),
    "agentMemoryBytes": ("agent_memory_bytes", "gauge", "Resident memory of all agents."),
    "openDeliveries": ("open_deliveries", "gauge", "Deliveries whose batch is not committed."),
    "settlingDeliveries": (
        "settling_deliveries",
        "gauge",
        "Deliveries of committed batches whose acknowledgement is not confirmed.",
    ),
    "spoolObjects": ("spool_objects", "gauge", "Objects in the spool."),
    "spoolBytes": ("spool_bytes", "gauge", "The same in bytes."),
    "spoolOldestSeconds": ("spool_oldest_seconds", "gauge", "Age of the oldest of them."),
    "spoolSuspects": (
        "spool_suspects",
        "gauge",
        "Objects kept because their messages may come again after a failure.",
    ),
}


def measure(overview: Overview) -> dict[str, Any]:
    """Give the measurements under their names in the progress."""
    status = overview.status
    spool = overview.spool or SpoolFigures()
    return {
        "agents": overview.agents,
        "streams": status.streams,
        "bufferedMessages": status.buffered_rows,
        "bufferedBytes": status.buffered_bytes,
        "unackedMessages": status.unacked_rows,
        "oldestUnackedSeconds": round(status.oldest_unacked_seconds, 3),
        "received": status.received,
        "redelivered": status.redelivered,
        "dropped": status.dropped,
        "acked": status.acked,
        "nacked": status.nacked,
        "ackFailures": status.ack_failures,
        "backoffs": status.backoffs,
        "agentMemoryBytes": status.memory_bytes,
        "openDeliveries": overview.open_deliveries,
        "settlingDeliveries": overview.settling_deliveries,
        "spoolObjects": spool.objects,
        "spoolBytes": spool.size,
        "spoolOldestSeconds": 0.0
        if spool.oldest_at is None
        else round(max(0.0, time.time() - spool.oldest_at), 3),
        "spoolSuspects": spool.suspects,
    }


def render_metrics(values: dict[str, Any], subscription: str) -> str:
    """Write the measurements in Prometheus' text format."""
    return render("penstock_pubsub", METRICS, values, subscription=subscription)
