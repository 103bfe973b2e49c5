"""Resource names: their form, checked as the service does; pure."""

from __future__ import annotations

import re

from penstock.emulator.pubsub.rpc import invalid

DELETED_TOPIC = "_deleted-topic_"

_ID = r"[A-Za-z][A-Za-z0-9\-._~+%]{2,254}"
_PROJECT = r"[^/]+"


def check_name(name: str, collection: str, field: str = "name") -> None:
    """Refuse a name that is not projects/<project>/<collection>/<id>."""
    match = re.fullmatch(rf"projects/{_PROJECT}/{collection}/({_ID})", name)
    if match is None or match.group(1).startswith("goog"):
        raise invalid(
            field,
            f"{name!r} is not of the form projects/{{project}}/{collection}/{{id}}, where id is 3 "
            "to 255 characters, begins with a letter and not with 'goog', and has only letters, "
            "digits and -._~+%",
        )


def check_project(name: str, field: str = "project") -> None:
    """Refuse a name that is not projects/<project>."""
    if re.fullmatch(rf"projects/{_PROJECT}", name) is None:
        raise invalid(field, f"{name!r} is not of the form projects/{{project}}")


def check_labels(labels: object) -> None:
    """Refuse labels beyond the service's limits."""
    pairs = dict(labels)  # type: ignore[call-overload]
    if len(pairs) > 64:
        raise invalid("labels", f"{len(pairs)} labels, at most 64 are allowed")
    for key, value in pairs.items():
        if not re.fullmatch(r"[^\W\dA-Z_][\w-]{0,62}", key) or key != key.lower():
            raise invalid("labels", f"the key {key!r} is not lower case or is too long")
        if not re.fullmatch(r"[\w-]{0,63}", value) or value != value.lower():
            raise invalid("labels", f"the value of {key!r} is not lower case or is too long")
