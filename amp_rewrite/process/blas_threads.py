"""The threads of NumPy's BLAS: one, where many small products would wait for each other."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController


def single() -> AbstractContextManager[Any]:
    """A context in which NumPy multiplies matrices on one thread.

    The threads of OpenBLAS wait for each other by spinning. On a busy machine, or in a container that may not
    use all processors that it sees, products of 256 rows take up to fifty times as long with several.
    """
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> ThreadpoolController:
    """What controls the BLAS that this process has loaded; to find it takes milliseconds."""
    return ThreadpoolController()
