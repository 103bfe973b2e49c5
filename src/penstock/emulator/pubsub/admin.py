"""The emulator's own service: faults, denied permissions and counters, as JSON over gRPC.

Served beside the Pub/Sub API on the same port, so that a test in any process can use it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

from penstock.emulator.pubsub.faults import Fault
from penstock.emulator.pubsub.rpc import invalid, not_found
from penstock.emulator.pubsub.store import Store

SERVICE = "penstock.emulator.Admin"


class AdminService:
    """Methods take and give JSON objects."""

    def __init__(self, store: Store, restart: Callable[[float], None]) -> None:
        self._store = store
        self._restart = restart
        # The API's methods, which faults may name; filled by the server that binds them.
        self.methods: set[str] = set()

    def inject(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put a fault in force."""
        try:
            fault = Fault(**request)
        except (TypeError, ValueError) as exc:
            raise invalid("fault", str(exc)) from None
        if fault.method != "*" and fault.method not in self.methods:
            raise invalid("fault", f"there is no method {fault.method!r}")
        self._store.faults.add(fault)
        self._wake_streams()
        return {}

    def _wake_streams(self) -> None:
        """Let streams that wait for messages look at what has changed."""
        for subscription in self._store.subscriptions.values():
            subscription.notify()

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
        self._wake_streams()
        return {}

    def restart(self, request: dict[str, Any]) -> dict[str, Any]:
        """Cut all connections, and listen again after so many seconds."""
        seconds = request["seconds"]
        if not isinstance(seconds, int | float) or not 0 <= seconds <= 600:
            raise invalid("seconds", f"{seconds!r} is not between 0 and 600")
        self._restart(float(seconds))
        return {}

    def counters(self, request: dict[str, Any]) -> dict[str, Any]:
        """Count what happened on one subscription."""
        # Not by Store.subscription: to look at a subscription does not keep it from expiring.
        if request["subscription"] not in self._store.subscriptions:
            raise not_found(request["subscription"])
        backlog = self._store.subscriptions[request["subscription"]].backlog
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
        "Restart": restart,
        "Counters": counters,
        "TopicCounters": topic_counters,
        "Stats": stats,
    }

    def call(self, method: str, payload: bytes) -> bytes:
        """Serve one call."""
        try:
            request = json.loads(payload or b"{}")
        except ValueError as exc:
            raise invalid("request", f"is not JSON: {exc}") from None
        if not isinstance(request, dict):
            raise invalid("request", "is not a JSON object")
        try:
            answer = self.METHODS[method](self, request)
        except KeyError as exc:
            raise invalid("request", f"lacks {exc}") from None
        return json.dumps(answer).encode()
