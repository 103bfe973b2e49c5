"""What the service accepts in a PublishRequest; runs in the emulator's event loop, pure.

Each rule is checked for all messages of the request at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.emulator.pubsub.columns import lengths
from penstock.emulator.pubsub.rpc import invalid
from penstock.emulator.pubsub.wire import PublishedMessages

# The limit of a message's data is the same, so a request over it is what is always met first.
MAX_REQUEST_BYTES = 10 * 2**20
MAX_MESSAGES = 1000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024


def check_limits(request: PublishedMessages) -> None:
    """Refuse a request that the service would refuse, naming the field."""
    count = len(request.messages)
    if count == 0:
        raise invalid("messages", "the request has no messages")
    if count > MAX_MESSAGES:
        raise _too_large("message_count", count, MAX_MESSAGES)
    if len(request.payload) > MAX_REQUEST_BYTES:
        raise _too_large("request_size", len(request.payload), MAX_REQUEST_BYTES)
    _check_most("ordering_key", lengths(request.ordering_keys), MAX_ORDERING_KEY_BYTES)
    per_message = np.diff(request.attributes.offsets.to_numpy())
    _check_most("attributes_count", per_message, MAX_ATTRIBUTES)
    doubtful = (per_message == 0) & ~request.begins_with_data()
    if doubtful.any() and (lengths(request.data)[doubtful] == 0).any():
        raise invalid("messages", "a message has neither data nor attributes")
    _check_attributes(request.attributes)


def _check_attributes(attributes: pa.MapArray) -> None:
    keys, values = attributes.keys, attributes.items
    if not len(keys):
        return
    sizes = lengths(keys)
    if (sizes == 0).any():
        raise invalid("attributes", "an attribute has an empty key")
    _check_most("attribute key size", sizes, MAX_KEY_BYTES)
    _check_most("attribute value size", lengths(values), MAX_VALUE_BYTES)
    if pc.any(pc.starts_with(keys, "goog")).as_py():
        raise invalid("attributes", "an attribute's key begins with 'goog', which is reserved")


def _check_most(what: str, values: npt.NDArray[np.int32], most: int) -> None:
    largest = int(values.max(initial=0))
    if largest > most:
        raise _too_large(what, largest, most)


def _too_large(what: str, value: int, most: int) -> Exception:
    return invalid(
        what,
        f"the value for {what} is too large. You passed {value} in the request, but the maximum "
        f"value is {most}",
    )
