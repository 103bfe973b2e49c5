"""The sink's rows as messages: checked, routed, grouped; runs in workers, pure.

Everything works on whole columns. Knows the service's limits, never the service. A flaw is a row
that the service would never accept; it is found before anything of its batch is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pubsub.encoding import (
    MESSAGE_SCHEMA,
    Ints,
    byte_lengths,
    framed_sizes,
    map_spans,
    topic_size,
)
from penstock.pubsub.options import full_name, name_problem

# cloud.google.com/pubsub/quotas#resource_limits; the service counts 10 MB as 10,000,000.
MAX_REQUEST_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Flaw:
    """One way in which a row cannot be published."""

    column: str
    fact: str
    remedy: str


_SHORTEN = "Shorten it, or set deadLetterTopic to put such rows aside"
_NOT_TEXT = "Encode it, with base64(...) for example, or set deadLetterTopic"
# By code; 0 is a row without flaw. The first that applies is reported.
FLAWS: tuple[Flaw, ...] = (
    Flaw("", "", ""),
    Flaw(
        "data",
        "the message has neither data nor attributes, and the service refuses an empty message",
        "Filter such rows out, or set deadLetterTopic to put them aside",
    ),
    Flaw(
        "data",
        f"the message is over the service's limit of {MAX_REQUEST_BYTES:,} bytes",
        "Store large payloads elsewhere and publish where they are, or set deadLetterTopic",
    ),
    Flaw("attributes", f"there are more than {MAX_ATTRIBUTES} attributes", _SHORTEN),
    Flaw("attributes", f"a key has more than {MAX_ATTRIBUTE_KEY_BYTES} bytes of UTF-8", _SHORTEN),
    Flaw(
        "attributes",
        "a key starts with 'goog', which the service keeps for itself",
        "Rename the key, or set deadLetterTopic to put such rows aside",
    ),
    Flaw(
        "attributes", f"a value has more than {MAX_ATTRIBUTE_VALUE_BYTES} bytes of UTF-8", _SHORTEN
    ),
    Flaw(
        "attributes",
        "a value is null, and the service has no null",
        "Remove it with map_filter(attributes, (k, v) -> v IS NOT NULL), or set deadLetterTopic",
    ),
    Flaw("attributes", "a key or a value is not valid UTF-8", _NOT_TEXT),
    Flaw("ordering_key", f"it has more than {MAX_ORDERING_KEY_BYTES} bytes of UTF-8", _SHORTEN),
    Flaw("ordering_key", "it is not valid UTF-8", _NOT_TEXT),
    Flaw(
        "topic",
        "it is null, and option topicId is not set",
        "Set topicId, give every row a topic, or set deadLetterTopic to put such rows aside",
    ),
    Flaw(
        "topic",
        "it is neither projects/PROJECT/topics/ID nor an id that projectId completes",
        "Correct the name, or set projectId or deadLetterTopic",
    ),
)
(
    _,
    _EMPTY,
    _TOO_LARGE,
    _MANY_ATTRIBUTES,
    _LONG_KEY,
    _GOOG_KEY,
    _LONG_VALUE,
    _NULL_VALUE,
    _BAD_ATTRIBUTE,
    _LONG_ORDERING_KEY,
    _BAD_ORDERING_KEY,
    _NO_TOPIC,
    _BAD_TOPIC,
) = range(len(FLAWS))


@dataclass(frozen=True)
class Rows:
    """Messages that may share requests: of one topic and, if ordered, of one ordering key."""

    topic: str
    ordering_key: str | None
    messages: pa.RecordBatch
    sizes: Ints

    def slice(self, start: int, length: int) -> Rows:
        """Give some of them, without a copy."""
        return Rows(
            self.topic,
            self.ordering_key,
            self.messages.slice(start, length),
            self.sizes[start : start + length],
        )


@dataclass(frozen=True)
class Batch:
    """One Arrow batch of the sink: messages, the topic of each (or of all), and their flaws."""

    messages: pa.RecordBatch
    topics: pa.Array | str
    sizes: Ints
    flaws: Codes

    def select(self, mask: npt.NDArray[np.bool_]) -> Batch:
        """Keep the rows where the mask is true."""
        kept = pa.array(mask)
        topics = self.topics if isinstance(self.topics, str) else self.topics.filter(kept)
        return Batch(self.messages.filter(kept), topics, self.sizes[mask], self.flaws[mask])


def read_batch(batch: pa.RecordBatch, topic: str | None, project_id: str | None) -> Batch:
    """Take the sink's columns out of Spark's batch and check every row."""
    count = batch.num_rows
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(count, field.type)
        for field in MESSAGE_SCHEMA
    ]
    messages = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
    sizes = framed_sizes(messages)
    flaws = np.zeros(count, np.uint8)
    if topic is not None:
        _find_flaws(messages, sizes, topic_size(topic), flaws)
        return Batch(messages, topic, sizes, flaws)
    topics = _complete_topics(batch.column("topic").cast(pa.string()), project_id, flaws)
    longest = int(byte_lengths(topics).max(initial=0))
    _find_flaws(messages, sizes, topic_size("x" * longest), flaws)
    return Batch(messages, topics, sizes, flaws)


def _flag(flaws: Codes, code: int, mask: npt.NDArray[np.bool_]) -> None:
    flaws[mask & (flaws == 0)] = code


def _complete_topics(topics: pa.StringArray, project_id: str | None, flaws: Codes) -> pa.Array:
    is_bad = is_not_text(topics)
    _flag(flaws, _BAD_TOPIC, is_bad)
    topics = pc.if_else(pa.array(is_bad), pa.scalar(None, pa.string()), topics)
    encoded = topics.dictionary_encode()
    indices = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    bad = [code for code, name in enumerate(names) if name_problem("topics", name, project_id)]
    _flag(flaws, _NO_TOPIC, indices < 0)
    _flag(flaws, _BAD_TOPIC, np.isin(indices, bad))
    full = pa.array([full_name("topics", name, project_id) for name in names], pa.string())
    return full.take(encoded.indices)


def _find_flaws(messages: pa.RecordBatch, sizes: Ints, topic_bytes: int, flaws: Codes) -> None:
    offsets, keys, items = map_spans(messages.column("attributes"))
    counts = np.diff(offsets)
    _flag(flaws, _EMPTY, (byte_lengths(messages.column("data")) == 0) & (counts == 0))
    _flag(flaws, _TOO_LARGE, sizes + topic_bytes > MAX_REQUEST_BYTES)
    _flag(flaws, _MANY_ATTRIBUTES, counts > MAX_ATTRIBUTES)
    if len(keys):
        for code, entries in (
            (_LONG_KEY, byte_lengths(keys) > MAX_ATTRIBUTE_KEY_BYTES),
            (_GOOG_KEY, pc.starts_with(keys, "goog").to_numpy(zero_copy_only=False)),
            (_LONG_VALUE, byte_lengths(items) > MAX_ATTRIBUTE_VALUE_BYTES),
            (_NULL_VALUE, items.is_null().to_numpy(zero_copy_only=False)),
            (_BAD_ATTRIBUTE, is_not_text(keys) | is_not_text(items)),
        ):
            flagged = np.flatnonzero(entries)
            if len(flagged):
                mask = np.zeros(len(counts), np.bool_)
                mask[np.searchsorted(offsets, flagged, side="right") - 1] = True
                _flag(flaws, code, mask)
    ordering_keys = messages.column("ordering_key")
    _flag(flaws, _LONG_ORDERING_KEY, byte_lengths(ordering_keys) > MAX_ORDERING_KEY_BYTES)
    _flag(flaws, _BAD_ORDERING_KEY, is_not_text(ordering_keys))


def is_not_text(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Find strings that are not UTF-8: Spark has them, from casts of binary; the wire must not."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return np.ones(1, np.bool_)
        middle = len(values) // 2
        halves = (is_not_text(values.slice(0, middle)), is_not_text(values.slice(middle)))
        return np.concatenate(halves)
    return np.zeros(len(values), np.bool_)


def group(batch: Batch, *, is_ordered: bool) -> Iterator[Rows]:
    """Split rows by topic and, if ordered, by ordering key; within a group the order stays."""
    messages, topics = batch.messages, batch.topics
    if messages.num_rows == 0:
        return
    names = [topics] if isinstance(topics, str) else []
    codes = np.zeros(messages.num_rows, np.int64)
    if not isinstance(topics, str):
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        codes = np.asarray(encoded.indices.to_numpy(), np.int64)
    keys: list[str] = [""]
    if is_ordered:
        # The empty key means no key, as null does.
        encoded = pc.fill_null(messages.column("ordering_key"), "").dictionary_encode()
        keys = encoded.dictionary.to_pylist()
        codes = codes * len(keys) + np.asarray(encoded.indices.to_numpy(), np.int64)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    sizes = batch.sizes
    if len(starts) > 1:
        messages, sizes = messages.take(pa.array(order)), sizes[order]
    for start, end in zip(starts, [*starts[1:], len(codes)], strict=True):
        topic, key = divmod(int(codes[start]), len(keys))
        rows = Rows(names[topic], keys[key] or None, messages, sizes)
        yield rows.slice(int(start), int(end - start))


def has_ordering_keys(messages: pa.RecordBatch) -> bool:
    """Tell whether any row has an ordering key."""
    return bool(byte_lengths(messages.column("ordering_key")).any())
