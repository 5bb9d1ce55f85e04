"""Python's cyclic garbage collector, paused while large graphs are built."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def paused() -> Generator[None]:
    """Pauses the collector, which would traverse a large graph again and again as it grows.

    A pass over 100,000 nodes takes twice as long with it. Objects that were created meanwhile count as old
    afterwards, so that the collector does not traverse them all at once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # what the host froze stays frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
