"""Options of format("pubsub"): how to connect, what to write, what to read; pure but for one thing.

Parsed on the driver and carried to the workers. The one thing: PUBSUB_EMULATOR_HOST is read while
parsing, because executors may not have the variable. Never opens a file or a connection.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from penstock.errors import OptionError
from penstock.options import BOOLEAN, Options, Parser, duration, integer, opt, size

DEFAULT_ENDPOINT = "https://pubsub.googleapis.com:443"
EMULATOR_VARIABLE = "PUBSUB_EMULATOR_HOST"

# cloud.google.com/pubsub/docs/pubsub-basics#resource_names
_RESOURCE_ID = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9\-._~+%]{2,254}")
# Project ids, numbers and domain-scoped ids; the service has the last word.
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-._:]{0,127}")
_ID_RULE = (
    "is not a valid name: 3 to 255 characters, a letter first, then letters, digits and -._~+%, "
    "not starting with 'goog'"
)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _parse_endpoint(value: str) -> str:
    match = re.fullmatch(
        r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._]+)(?::(\d{1,5}))?/?", value.strip()
    )
    if not match:
        raise ValueError("host, host:port, http://host:port or https://host:port")
    scheme = match.group(1) or ("http" if _is_loopback(match.group(2)) else "https")
    return f"{scheme}://{match.group(2)}:{match.group(3) or ('80' if scheme == 'http' else '443')}"


def _parse_credentials(value: str) -> str:
    text = value.strip()
    expected = "a service-account key, as JSON or as base64 of that JSON"
    if not text.startswith("{"):
        try:
            text = base64.b64decode(text, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError(expected) from None
    try:
        key = json.loads(text)
    except json.JSONDecodeError:
        raise ValueError(expected) from None
    if not isinstance(key, dict) or "type" not in key:
        raise ValueError(expected)
    return text


ENDPOINT = Parser("endpoint", _parse_endpoint)
CREDENTIALS = Parser("JSON or base64", _parse_credentials)


@dataclass(frozen=True, kw_only=True)
class PubSubConnectionOptions(Options):
    """What every use of Pub/Sub shares: project, endpoint, credentials."""

    project_id: str | None = opt(
        "Project of the topics and subscriptions that are given by their short ids.",
        default=None,
        example="shop",
    )
    endpoint: str | None = opt(
        "Service address. https:// means TLS with credentials; http:// means plain text without "
        "any, for emulators. Without a scheme: plain text for a loopback address, else TLS. Wins "
        f"over {EMULATOR_VARIABLE}, which is read on the driver (set it before Spark starts) and "
        f"otherwise replaces the default, {DEFAULT_ENDPOINT}.",
        ENDPOINT,
        default=None,
        example="http://127.0.0.1:8085",
        advanced=True,
    )
    credentials_file: str | None = opt(
        "Path of a credentials file (service account, workload identity). It is read where it is "
        "used: the path has to exist on the driver and on every executor. Without any credentials "
        "option, application default credentials are used.",
        default=None,
        example="/etc/penstock/key.json",
    )
    credentials: str | None = opt(
        "A credentials file's content, inline or base64. It travels with the query's tasks.",
        CREDENTIALS,
        default=None,
        secret=True,
    )
    client_email: str | None = opt(
        "Service account, for keys given in four parts: clientEmail, clientId, privateKey and "
        "privateKeyId, all or none.",
        default=None,
        advanced=True,
    )
    client_id: str | None = opt("See clientEmail.", default=None, advanced=True)
    private_key: str | None = opt(
        "See clientEmail. PEM; a literal \\n stands for a line break.",
        default=None,
        secret=True,
        advanced=True,
    )
    private_key_id: str | None = opt("See clientEmail.", default=None, secret=True, advanced=True)

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Self:
        """See `Options`; an emulator named by the environment becomes the endpoint."""
        host = os.environ.get(EMULATOR_VARIABLE, "").strip()
        if host and not any(key.lower() == "endpoint" for key in raw):
            host = host if "://" in host else f"http://{host}"
            raw = {**raw, "endpoint": host}
        return super().parse(raw)

    @property
    def is_plaintext(self) -> bool:
        """Whether to speak without TLS and without credentials."""
        return (self.endpoint or DEFAULT_ENDPOINT).startswith("http://")

    @property
    def target(self) -> str:
        """The host:port to connect to."""
        return (self.endpoint or DEFAULT_ENDPOINT).split("://", 1)[1]

    @property
    def key_info(self) -> dict[str, Any] | None:
        """The inline service-account key, however it was given; secret."""
        if self.credentials is not None:
            return dict(json.loads(self.credentials))
        if self.client_email is None or self.private_key is None:
            return None
        return {
            "type": "service_account",
            "client_email": self.client_email,
            "client_id": self.client_id,
            "private_key": self.private_key.replace("\\n", "\n"),
            "private_key_id": self.private_key_id,
            "token_uri": "https://oauth2.googleapis.com/token",
        }

    def check(self) -> None:
        """Check that at most one whole way of giving credentials was used."""
        parts = {
            "clientEmail": self.client_email,
            "clientId": self.client_id,
            "privateKey": self.private_key,
            "privateKeyId": self.private_key_id,
        }
        absent = [name for name, value in parts.items() if value is None]
        if 0 < len(absent) < len(parts):
            raise OptionError(
                "OPTION_MISSING",
                f"Option '{absent[0]}' of {self.USE}",
                "is not set, but other parts of the same key are",
                f"Set all of {', '.join(parts)}, or none of them",
            )
        ways = [
            name
            for name, is_used in (
                ("credentialsFile", self.credentials_file is not None),
                ("credentials", self.credentials is not None),
                ("privateKey", not absent),
            )
            if is_used
        ]
        if len(ways) > 1:
            raise OptionError(
                "OPTION_CONFLICT",
                f"Options '{ways[0]}' and '{ways[1]}' of {self.USE}",
                "are both set, and each names credentials of its own",
                "Keep one of them",
            )
        if self.project_id is not None and not _PROJECT.fullmatch(self.project_id):
            raise OptionError(
                "OPTION_INVALID",
                f"Option 'projectId' of {self.USE}",
                f"the value {self.project_id!r} is not a project id",
                "Use the id that `gcloud projects list` shows",
            )

    def complete(self, kind: str, option: str, value: str) -> str:
        """Turn a short id or a full name into a full name; `kind` is topics or subscriptions."""
        fact = name_problem(kind, value, self.project_id)
        if fact is not None:
            raise OptionError(
                "OPTION_INVALID",
                f"Option '{option}' of {self.USE}",
                f"the value {value!r} {fact}",
                f"Give an id together with projectId, or a full name: projects/PROJECT/{kind}/ID",
            )
        return full_name(kind, value, self.project_id)


def full_name(kind: str, value: str, project_id: str | None) -> str:
    """Complete a short id with the project; a full name stays as it is."""
    return value if "/" in value else f"projects/{project_id}/{kind}/{value}"


def name_problem(kind: str, value: str, project_id: str | None) -> str | None:
    """Say what is wrong with a topic's or subscription's name, or None."""
    if "/" not in value:
        if not _RESOURCE_ID.fullmatch(value):
            return _ID_RULE
        return None if project_id is not None else "is a short id, and projectId is not set"
    parts = value.split("/")
    if len(parts) != 4 or parts[0] != "projects" or parts[2] != kind:
        return f"is not a full name of the form projects/PROJECT/{kind}/ID"
    if not _PROJECT.fullmatch(parts[1]):
        return "does not name a valid project"
    return None if _RESOURCE_ID.fullmatch(parts[3]) else _ID_RULE


@dataclass(frozen=True, kw_only=True)
class PubSubSinkOptions(PubSubConnectionOptions):
    """Options of writing, streaming and batch."""

    USE: ClassVar[str] = 'write.format("pubsub")'

    topic_id: str | None = opt(
        "Topic to publish to, a short id or a full name. Without it every row names its topic in "
        "a `topic` column; with it such a column is ignored.",
        default=None,
        example="orders",
    )
    batch_rows: int = opt(
        "Most messages in one publish request; 1000 is the service's own limit.",
        integer(1, 1000),
        default=1000,
    )
    batch_bytes: int = opt(
        "Most bytes in one publish request, as encoded. The service refuses more than 10MB; a "
        "single message over batchBytes travels alone.",
        size(1, 10_000_000),
        default=9_000_000,
    )
    linger: float = opt(
        "How long an incomplete request waits for more rows. Rows arrive in Arrow batches "
        "(spark.sql.execution.arrow.maxRecordsPerBatch), so this only joins the end of one batch "
        "with the start of the next; the end of a partition never waits. 0s sends at once.",
        duration(0.0, 60.0),
        default=0.01,
        advanced=True,
    )
    # Eight of 1 MB already fill a gigabit link at 60 ms; more only evict each other from the cache.
    max_in_flight_requests: int = opt(
        "Most requests of one task that are sent and not yet confirmed; bounds its memory at "
        "about this many times batchBytes. Raise it for many ordering keys: each key has at "
        "most one request in flight.",
        integer(1, 1000),
        default=8,
    )
    flush_timeout: float = opt(
        "A task fails when it has unconfirmed requests and none was confirmed for this long, "
        "whatever the reason: silence, refusals, retries. It restarts with each confirmation, so "
        "it does not bound the whole write. One request is given half of it before it is retried.",
        duration(0.1, 86_400.0),
        default=60.0,
    )
    enable_message_ordering: bool = opt(
        "Publish rows of one ordering_key in their order, one request at a time, also across "
        "retries. Without it, a row that has an ordering_key is an error.",
        BOOLEAN,
        default=False,
    )
    dead_letter_topic: str | None = opt(
        "Topic for rows that the service would never accept (limits, topic schema), id or full "
        "name. They arrive with attributes penstock_error, penstock_topic and, where they apply, "
        "penstock_ordering_key and penstock_truncated_bytes (data is cut at 9,000,000 bytes). "
        "Without it such a row fails the query.",
        default=None,
        example="orders-refused",
    )

    @property
    def topic(self) -> str | None:
        """The full name of the topic, or None when rows name theirs."""
        if self.topic_id is None:
            return None
        return full_name("topics", self.topic_id, self.project_id)

    @property
    def dead_letter(self) -> str | None:
        """The full name of the dead-letter topic."""
        if self.dead_letter_topic is None:
            return None
        return full_name("topics", self.dead_letter_topic, self.project_id)

    def check(self) -> None:
        """Check names; see also the connection's rules."""
        super().check()
        if self.topic_id is not None:
            self.complete("topics", "topicId", self.topic_id)
        if self.dead_letter_topic is not None:
            self.complete("topics", "deadLetterTopic", self.dead_letter_topic)
            if self.dead_letter == self.topic:
                raise OptionError(
                    "OPTION_CONFLICT",
                    f"Options 'deadLetterTopic' and 'topicId' of {self.USE}",
                    f"both name {self.topic}",
                    "Give refused messages a topic of their own",
                )


@dataclass(frozen=True, kw_only=True)
class PubSubReadOptions(PubSubConnectionOptions):
    """Options of the batch read."""

    USE: ClassVar[str] = 'spark.read.format("pubsub")'

    subscription_id: str = opt(
        "Subscription to look into, a short id or a full name. Nothing is consumed, but being "
        "looked at counts as a delivery attempt where the subscription has a dead-letter policy.",
        example="orders-sub",
    )
    max_messages: int = opt(
        "Most messages to lease, counted before filters are applied.",
        integer(1, 1_000_000),
        default=1000,
    )
    max_fetch_period: float = opt(
        "Longest time to collect messages. Ends earlier at maxMessages or maxBytes, or when "
        "nothing new has come for 2 seconds after the first messages.",
        duration(0.1, 540.0),
        default=10.0,
    )
    max_bytes: int = opt(
        "Collecting also stops at about so many bytes; they are held in one worker's memory.",
        size(1),
        default=256_000_000,
        advanced=True,
    )

    @property
    def subscription(self) -> str:
        """The subscription's full name."""
        return full_name("subscriptions", self.subscription_id, self.project_id)

    def check(self) -> None:
        """Check the name; see also the connection's rules."""
        super().check()
        self.complete("subscriptions", "subscriptionId", self.subscription_id)
