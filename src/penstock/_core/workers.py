"""Habits of PySpark's Python workers; runs in workers."""

from __future__ import annotations

import functools
import gc


@functools.cache
def ease_collection() -> None:
    """Make the full garbage collection cheap that PySpark runs in a worker after every task.

    It walks all objects of all modules, a tenth of a second for what a connector imports. Objects
    that are there now are taken out of its sight; once in each worker.
    """
    gc.collect()
    gc.freeze()
