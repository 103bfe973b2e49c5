"""The emulator's own service: faults, denied permissions and counters, as JSON over gRPC.

Served beside the Pub/Sub API on the same port, so that a test in any process can use it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from penstock.emulator.pubsub.faults import Fault
from penstock.emulator.pubsub.rpc import invalid
from penstock.emulator.pubsub.store import Store

SERVICE = "penstock.emulator.Admin"


class AdminService:
    """Methods take and give JSON objects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def inject(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put a fault in force."""
        try:
            self._store.faults.add(Fault(**request))
        except (TypeError, ValueError) as exc:
            raise invalid("fault", str(exc)) from None
        # Streams that wait for messages have to see it too.
        for subscription in self._store.subscriptions.values():
            subscription.notify()
        return {}

    def clear_faults(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - a method
        """Take all faults back."""
        self._store.faults.clear()
        return {}

    def deny(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take a permission away from every caller, or give it back."""
        entry = (str(request["permission"]), "*")
        if request.get("allow"):
            self._store.denied.discard(entry)
        else:
            self._store.denied.add(entry)
        return {}

    def counters(self, request: dict[str, Any]) -> dict[str, Any]:
        """Count what happened on one subscription."""
        subscription = self._store.subscription(request["subscription"])
        backlog = subscription.backlog
        return {
            **dataclasses.asdict(backlog.counters),
            "outstanding": backlog.outstanding,
            "unacked": backlog.unacked,
            "streams": len(backlog.loads),
        }

    def topic_counters(self, request: dict[str, Any]) -> dict[str, Any]:
        """Count what was published to one topic, and what of it is stored now."""
        topic = self._store.topic(request["topic"])
        return {
            "published": topic.published,
            "published_bytes": topic.published_bytes,
            "stored": topic.log.end - topic.log.first,
            "stored_bytes": topic.log.stored_bytes,
        }

    def stats(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - a method
        """Count calls by method, and faults by kind; name the process."""
        return {
            "calls": self._store.calls,
            "faults": self._store.faults.struck,
            "pid": os.getpid(),
        }

    METHODS = {  # noqa: RUF012 - read only
        "Inject": inject,
        "ClearFaults": clear_faults,
        "Deny": deny,
        "Counters": counters,
        "TopicCounters": topic_counters,
        "Stats": stats,
    }

    def call(self, method: str, payload: bytes) -> bytes:
        """Serve one call."""
        try:
            request = json.loads(payload or b"{}")
            answer = self.METHODS[method](self, request)
        except (KeyError, json.JSONDecodeError) as exc:
            raise invalid("request", repr(exc)) from None
        return json.dumps(answer).encode()
