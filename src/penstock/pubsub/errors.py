"""The one table from gRPC status codes to Penstock's errors; runs everywhere, imports no SDK.

Each entry says which class, which code and what to do about it. The object is the topic or
subscription, the fact is the service's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.errors import (
    AccessError,
    ConnectError,
    PenstockError,
    ResourceError,
    WireError,
    WriteRejectedError,
)

# Long enough for the service's sentences, short enough for a log line.
_LONGEST_DETAILS = 600


class CallFailed(Exception):  # noqa: N818 - a status on its way to the table, never shown to a user
    """A call ended with a status other than OK."""

    def __init__(self, code: str, details: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(code, details, reasons)
        self.code = code
        self.details = details
        # Exactly-once subscriptions: why each of these ack ids was not taken.
        self.reasons = dict(reasons or {})


@dataclass(frozen=True)
class Resource:
    """The topic or subscription that a call was about."""

    kind: str
    name: str

    @classmethod
    def topic(cls, name: str) -> Resource:
        """Name a topic."""
        return cls("topic", name)

    @classmethod
    def subscription(cls, name: str) -> Resource:
        """Name a subscription."""
        return cls("subscription", name)

    def words(self) -> dict[str, str]:
        """Give the words that remedies are made of."""
        parts = self.name.split("/")
        project, short = (parts[1], parts[3]) if len(parts) == 4 else ("PROJECT", self.name)
        topic_flag = " --topic=TOPIC" if self.kind == "subscription" else ""
        role = "roles/pubsub.publisher" if self.kind == "topic" else "roles/pubsub.subscriber"
        return {
            "kind": self.kind,
            "create": f"gcloud pubsub {self.kind}s create {short} --project={project}{topic_flag}",
            "grant": (
                f"gcloud pubsub {self.kind}s add-iam-policy-binding {short} --project={project} "
                f"--member=MEMBER --role={role}"
            ),
        }


@dataclass(frozen=True)
class Rule:
    """What one status code means to a user."""

    error: type[PenstockError]
    code: str
    remedy: str


_TRY_LATER = (
    "This is usually passing: run it again. If it stays, check the network between the executors "
    "and the endpoint, and status.cloud.google.com"
)
_REPORT = "This should not happen: report it with this text"

RULES: dict[str, Rule] = {
    "OK": Rule(WireError, "WIRE", _REPORT),
    "CANCELLED": Rule(ConnectError, "CANCELLED", _TRY_LATER),
    "UNKNOWN": Rule(ConnectError, "SERVICE_FAILED", _TRY_LATER),
    "INVALID_ARGUMENT": Rule(
        WriteRejectedError,
        "REFUSED",
        "If the topic has a schema, make `data` conform to it, or set deadLetterTopic to put "
        "refused messages aside",
    ),
    "DEADLINE_EXCEEDED": Rule(ConnectError, "TIMEOUT", _TRY_LATER),
    "NOT_FOUND": Rule(
        ResourceError,
        "NOT_FOUND",
        "Correct the name, or create the {kind}: {create}",
    ),
    "ALREADY_EXISTS": Rule(ResourceError, "ALREADY_EXISTS", "Use the {kind} that is there"),
    "PERMISSION_DENIED": Rule(
        AccessError,
        "PERMISSION_DENIED",
        "Grant the role to the account that runs the query: {grant}",
    ),
    "RESOURCE_EXHAUSTED": Rule(
        ConnectError,
        "QUOTA",
        "Ask for more throughput quota, or lower the rate; see the quota page of the project",
    ),
    "FAILED_PRECONDITION": Rule(
        ResourceError,
        "UNFIT",
        "Look at the {kind}'s settings (message storage policy, KMS key, detached): "
        "the service's text above says which",
    ),
    "ABORTED": Rule(ConnectError, "ABORTED", _TRY_LATER),
    "OUT_OF_RANGE": Rule(WriteRejectedError, "REFUSED", _REPORT),
    "UNIMPLEMENTED": Rule(
        ConnectError, "NOT_PUBSUB", "Check that option 'endpoint' is a Pub/Sub service"
    ),
    "INTERNAL": Rule(ConnectError, "SERVICE_FAILED", _TRY_LATER),
    "UNAVAILABLE": Rule(ConnectError, "UNAVAILABLE", _TRY_LATER),
    "DATA_LOSS": Rule(WriteRejectedError, "REFUSED", _REPORT),
    "UNAUTHENTICATED": Rule(
        AccessError,
        "UNAUTHENTICATED",
        "Set credentialsFile or credentials, or run `gcloud auth application-default login`; a "
        "key may have been deleted",
    ),
}


def service_error(failure: CallFailed, resource: Resource) -> PenstockError:
    """Build the user's error for a call about this resource that failed for good."""
    rule = RULES[failure.code]
    details = " ".join(failure.details.split())[:_LONGEST_DETAILS].rstrip(". ")
    return rule.error(
        rule.code,
        f"{resource.kind.capitalize()} '{resource.name}'",
        f"{failure.code}: {details or 'no details given'}",
        rule.remedy.format(**resource.words()),
    )


@contextmanager
def translated(resource: Resource) -> Iterator[None]:
    """Turn a failed call about this resource into the user's error."""
    try:
        yield
    except CallFailed as failure:
        raise service_error(failure, resource) from failure
