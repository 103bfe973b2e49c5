"""Which ordering keys have messages out, and with whom; runs in the emulator's event loop.

Keys are numbers given by the topic's log, 0 for no key. All methods take arrays: one call per
request, not per message.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.emulator.pubsub.columns import Positions

Keys = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class KeyLocks:
    """The messages of one key that are out at one time are all with one holder."""

    def __init__(self) -> None:
        self._out = np.zeros(1, np.int64)
        self._holder = np.zeros(1, np.int32)

    def take(self, keys: Keys, holder: int) -> None:
        """Note messages that go out."""
        self._grow(keys)
        np.add.at(self._out, keys, 1)
        self._holder[keys] = holder

    def release(self, keys: Keys) -> None:
        """Note messages that are not out any more."""
        np.add.at(self._out, keys, -1)

    def is_free(self, keys: Keys) -> Mask:
        """Tell for each key whether none of its messages is out; no key is always free."""
        self._grow(keys)
        free: Mask = (keys == 0) | (self._out[keys] == 0)
        return free

    def is_with(self, keys: Keys, holder: int) -> Mask:
        """Tell for each key whether this holder had it last."""
        self._grow(keys)
        mine: Mask = self._holder[keys] == holder
        return mine

    def reset(self, keys: Keys, holders: npt.NDArray[np.int32]) -> None:
        """Start anew from the messages that are out, after keys were numbered anew."""
        self._out = np.zeros(1, np.int64)
        self._holder = np.zeros(1, np.int32)
        self._grow(keys)
        np.add.at(self._out, keys, 1)
        self._holder[keys] = holders

    def _grow(self, keys: Keys) -> None:
        missing = int(keys.max(initial=0)) + 1 - len(self._out)
        if missing > 0:
            more = missing + len(self._out)
            self._out = np.concatenate([self._out, np.zeros(more, np.int64)])
            self._holder = np.concatenate([self._holder, np.zeros(more, np.int32)])


def is_after(keys: Keys, positions: Positions, of_keys: Keys, of_positions: Positions) -> Mask:
    """Tell which messages come after the earliest of those given with the same key."""
    size = int(max(keys.max(initial=0), of_keys.max(initial=0))) + 1
    earliest = np.full(size, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(earliest, of_keys, of_positions)
    # Messages without a key have no order.
    earliest[0] = np.iinfo(np.int64).max
    after: Mask = positions > earliest[keys]
    return after
