"""Compute tables shard by shard: keep valid rows, save progress, measure the effort."""

import gc
import time

STARTED = time.monotonic()
"""About when the process of a command began: its slow imports come later."""
_OBJECTS, _YOUNG, _OLD = 50_000, 20, 50  # gc.set_threshold; Python's own are 700, 10, 10


def collect_rarely() -> None:
    """Collect garbage less often in this process: it takes a fifth of the time to import torch and transformers."""
    gc.set_threshold(_OBJECTS, _YOUNG, _OLD)
