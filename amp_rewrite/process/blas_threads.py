"""The threads of NumPy's BLAS: one, where many small products would wait for each other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

from threadpoolctl import ThreadpoolController

from amp_rewrite.process import startup


@contextlib.contextmanager
def single() -> Generator[None]:
    """A context, or a decorator, in which NumPy's products of matrices and vectors take one thread.

    The threads of OpenBLAS wait for each other by spinning. On a busy machine, or in a container that may not
    use all processors that it sees, products of 256 rows take up to fifty times as long with several, and
    norms of a million numbers up to twenty times. Contexts of several threads may overlap: the last one to
    end restores what was.
    """
    _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave()


class _Limit:
    """The limit, which is the process's, and how many contexts hold it."""

    def __init__(self) -> None:
        self._holders = 0
        self._limiter: Any = None

    def enter(self) -> None:
        with startup.LOCK:
            self._holders += 1
            if self._holders == 1:
                self._limiter = _controller().limit(limits=1, user_api="blas")

    def leave(self) -> None:
        with startup.LOCK:
            self._holders -= 1
            if not self._holders:
                self._limiter.restore_original_limits()


_LIMIT = _Limit()


@functools.cache
def _controller() -> ThreadpoolController:
    """What controls the BLAS that this process has loaded; to find it takes milliseconds."""
    return ThreadpoolController()
