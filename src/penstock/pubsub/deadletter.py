"""What goes to the dead-letter topic in place of a message; runs in workers, pure.

Keeps as much of the message as the service's limits allow, and says why it is there. Works on
whole columns: a topic that refuses everything must not be slower than one that accepts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pubsub.encoding import MESSAGE_SCHEMA, byte_lengths, framed_sizes, map_spans
from penstock.pubsub.rows import (
    FLAWS,
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_ORDERING_KEY_BYTES,
    Batch,
    Rows,
    is_not_text,
)

# Leaves room for every attribute a message can have.
MAX_DATA_BYTES = 9_000_000
_OWN_ATTRIBUTES = 4


def letters_of_flawed(batch: Batch, dead_letter_topic: str) -> Rows:
    """Build the dead letters of rows that break a limit; every row of the batch has a flaw."""
    texts = pa.array([f"{flaw.column}: {flaw.fact}" for flaw in FLAWS])
    reasons = texts.take(pa.array(batch.flaws))
    return _letters(batch.messages, reasons, batch.topics, dead_letter_topic)


def letters_of_refused(
    messages: pa.RecordBatch, topic: str, details: str, dead_letter_topic: str
) -> Rows:
    """Build the dead letters of messages that the service refused with this text."""
    # A cut through a character must not leave half of it.
    reason = f"refused: {details}".encode()[:MAX_ATTRIBUTE_VALUE_BYTES].decode(errors="ignore")
    return _letters(messages, _repeat(reason, messages.num_rows), topic, dead_letter_topic)


def _repeat(text: str, count: int) -> pa.StringArray:
    return pa.array([text] * count, pa.string())


def _letters(
    messages: pa.RecordBatch, reasons: pa.Array, topics: pa.Array | str, dead_letter_topic: str
) -> Rows:
    count = messages.num_rows
    data, ordering_keys = messages.column("data"), messages.column("ordering_key")
    lengths, key_lengths = byte_lengths(data), byte_lengths(ordering_keys)
    cut = np.flatnonzero(lengths > MAX_DATA_BYTES)
    if len(cut):
        data = pc.binary_slice(data, 0, MAX_DATA_BYTES)
    has_key = (key_lengths > 0) & (key_lengths <= MAX_ORDERING_KEY_BYTES)
    keyed = np.flatnonzero(has_key & ~is_not_text(ordering_keys))
    if isinstance(topics, str):
        topics = _repeat(topics, count)
    named = np.flatnonzero(topics.is_valid().to_numpy(zero_copy_only=False))
    attributes = _merge_attributes(
        messages.column("attributes"),
        [
            ("penstock_error", np.arange(count), reasons),
            # 255 characters of UTF-8 always fit the limit of a value.
            ("penstock_topic", named, pc.utf8_slice_codeunits(topics, 0, 255).take(named)),
            ("penstock_ordering_key", keyed, ordering_keys.take(keyed)),
            (
                "penstock_truncated_bytes",
                cut,
                pa.array(lengths[cut] - MAX_DATA_BYTES).cast(pa.string()),
            ),
        ],
    )
    columns = [data, attributes, pa.nulls(count, pa.string())]
    letters = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
    return Rows(dead_letter_topic, None, letters, framed_sizes(letters))


def _merge_attributes(
    attributes: pa.MapArray, added: list[tuple[str, npt.NDArray[np.int64], pa.Array]]
) -> pa.MapArray:
    """Keep what the limits allow of each row's attributes, then add ours: (key, rows, values)."""
    offsets, keys, items = map_spans(attributes)
    rows = np.repeat(np.arange(len(attributes)), np.diff(offsets))
    fits = (byte_lengths(keys) <= MAX_ATTRIBUTE_KEY_BYTES) & (
        byte_lengths(items) <= MAX_ATTRIBUTE_VALUE_BYTES
    )
    fits &= items.is_valid().to_numpy(zero_copy_only=False)
    fits &= ~(is_not_text(keys) | is_not_text(items))
    for prefix in ("goog", "penstock_"):
        fits &= ~pc.starts_with(keys, prefix).to_numpy(zero_copy_only=False)
    # Rank among the row's fitting attributes.
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(fits)])
    rank = before[:-1] - before[offsets[:-1]][rows]
    kept = np.flatnonzero(fits & (rank < MAX_ATTRIBUTES - _OWN_ATTRIBUTES))
    all_rows = np.concatenate([rows[kept], *(where for _, where, _ in added)])
    all_keys = pa.concat_arrays(
        [keys.take(kept), *(pa.array([key] * len(where), pa.string()) for key, where, _ in added)]
    )
    all_items = pa.concat_arrays([items.take(kept), *(values for _, _, values in added)])
    order = np.argsort(all_rows, kind="stable")
    ends = np.cumsum(np.bincount(all_rows, minlength=len(attributes)))
    spans = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
    return pa.MapArray.from_arrays(
        pa.array(spans), all_keys.take(pa.array(order)), all_items.take(pa.array(order))
    )
