"""A topic's stored messages, by position; runs in the emulator's event loop, no I/O.

Messages lie in Arrow arrays as the bytes that they were published with. Subscriptions hold
positions, never bytes, so a message is stored once whatever the number of subscriptions.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.emulator.pubsub.columns import Column, Positions, lengths

# Blocks under both sizes are joined once there are _SMALL_RUN of them in a row: an Arrow array
# costs several hundred bytes, too much for a publisher that sends single messages. For large
# messages that is nothing, while joining would copy them, and past 2 GiB an array cannot go.
_SMALL_BLOCK = 512
_SMALL_BLOCK_BYTES = 256 * 1024
_SMALL_RUN = 64
# Ordering keys that no stored message has are forgotten once there are this many of them.
_IDLE_KEYS = 50_000


@dataclass
class _Block:
    first: int
    # None once no subscription needs any message of the block any more.
    messages: pa.BinaryArray | None
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def is_small(self) -> bool:
        size = self.messages.nbytes if self.messages is not None else 0
        return self.count < _SMALL_BLOCK and size < _SMALL_BLOCK_BYTES


class TopicLog:
    """Append-only store of [first, end); old messages are released from the front or in blocks."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._small_run = 0
        self.ids = Column(np.int64)
        self.times_us = Column(np.int64)
        self.sizes = Column(np.int32)
        self.key_codes = Column(np.int32)
        # Ordering keys as numbers; 0 means no key.
        self._codes: dict[str, int] = {"": 0}
        # Counts how often the keys were numbered anew; who holds numbers has to compare.
        self.key_generation = 0
        self._newest_us = 0

    @property
    def first(self) -> int:
        """The oldest position that is still kept."""
        return self.times_us.first

    @property
    def end(self) -> int:
        """The position that the next message will get."""
        return self.times_us.end

    @property
    def stored_bytes(self) -> int:
        """Bytes of message data held now."""
        return sum(block.messages.nbytes for block in self._blocks if block.messages is not None)

    def append(
        self, messages: pa.BinaryArray, keys: pa.StringArray, first_id: int, time_us: int
    ) -> None:
        """Store messages published together; their ids are consecutive."""
        first, count = self.end, len(messages)
        block = _Block(first, messages, count)
        self._blocks.append(block)
        # Times are searched, so they never go back, whatever the machine's clock does.
        self._newest_us = time_us = max(time_us, self._newest_us)
        self.ids.extend(count, np.arange(first_id, first_id + count))
        self.times_us.extend(count, time_us)
        self.sizes.extend(count, lengths(messages))
        self.key_codes.extend(count, self._encode_keys(keys))
        self._small_run = self._small_run + 1 if block.is_small else 0
        if self._small_run >= _SMALL_RUN:
            self._join_small()

    def take(self, positions: Positions) -> pa.BinaryArray:
        """Give the bytes of messages, by ascending position (at least one)."""
        parts = list(self.parts(positions))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def parts(self, positions: Positions) -> Iterator[pa.BinaryArray]:
        """Give the bytes of messages, by ascending position, as they lie: an array at a time."""
        at = 0
        while at < len(positions):
            block = self._blocks[self._block_index(int(positions[at]))]
            until = int(np.searchsorted(positions, block.end))
            if block.messages is None:
                raise AssertionError(f"position {positions[at]} was released while in use")
            local = positions[at:until] - block.first
            if local[-1] - local[0] + 1 == len(local):
                yield block.messages.slice(int(local[0]), len(local))
            else:
                yield block.messages.take(pa.array(local))
            at = until

    def find_time(self, time_us: int) -> int:
        """Give the first position published at or after a time."""
        times = self.times_us.window(self.first, self.end)
        return self.first + int(np.searchsorted(times, time_us, side="left"))

    def release(self, keep_from: int, is_needed: Callable[[int, int], bool]) -> None:
        """Forget what lies before `keep_from`, and whole blocks that nobody needs."""
        drop = 0
        while drop < len(self._blocks) and self._blocks[drop].end <= keep_from:
            drop += 1
        if drop:
            del self._blocks[:drop]
            self._small_run = min(self._small_run, len(self._blocks))
        first = self._blocks[0].first if self._blocks else self.end
        for column in (self.ids, self.times_us, self.sizes, self.key_codes):
            column.trim(first)
        for block in self._blocks:
            if block.messages is not None and not is_needed(block.first, block.end):
                block.messages = None
        if len(self._codes) - len(self.key_codes) > _IDLE_KEYS:
            self._forget_keys()

    def is_kept(self, low: int, high: int) -> bool:
        """Tell whether every message of [low, high) is still stored."""
        if low >= high:
            return True
        if low < self.first:
            return False
        blocks = self._blocks[self._block_index(low) : self._block_index(high - 1) + 1]
        return all(block.messages is not None for block in blocks)

    def kept_positions(self, low: int, high: int) -> Positions:
        """List the positions of [low, high) whose messages are still stored."""
        ranges = [
            np.arange(max(low, block.first), min(high, block.end), dtype=np.int64)
            for block in self._blocks
            if block.messages is not None and block.first < high and block.end > low
        ]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def _block_index(self, position: int) -> int:
        return bisect.bisect_right(self._blocks, position, key=lambda block: block.first) - 1

    def _encode_keys(self, keys: pa.StringArray) -> npt.NDArray[np.int32]:
        if not lengths(keys).any():
            return np.zeros(len(keys), np.int32)
        encoded = keys.dictionary_encode()
        codes = [
            self._codes.setdefault(key, len(self._codes)) for key in encoded.dictionary.to_pylist()
        ]
        values: npt.NDArray[np.int32] = np.array(codes, np.int32)[encoded.indices.to_numpy()]
        return values

    def _join_small(self) -> None:
        run = self._blocks[-self._small_run :]
        stored = [block for block in run if block.messages is not None]
        if len(stored) == len(run):
            messages = pa.concat_arrays([block.messages for block in run])
            joined = _Block(run[0].first, messages, len(messages))
            self._blocks[-len(run) :] = [joined]
            # The joined block can be small itself; it then opens the next run.
            self._small_run = 1 if joined.is_small else 0
        else:
            self._small_run = 0

    def _forget_keys(self) -> None:
        """Number the keys of the stored messages anew, and forget all others."""
        codes = self.key_codes.window(self.first, self.end)
        used = np.union1d(codes, [0])
        names = list(self._codes)
        self._codes = {names[code]: number for number, code in enumerate(used.tolist())}
        codes[:] = np.searchsorted(used, codes)
        self.key_generation += 1
