"""Limit of one thread for NumPy's BLAS, whose threads contend in many small products."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

from threadpoolctl import ThreadpoolController

from amp_rewrite.process import startup


@contextlib.contextmanager
def single() -> Generator[None]:
    """Limit NumPy's products of matrices and vectors to one thread, as a context or decorator.

    The threads of OpenBLAS wait for each other by spinning. On a busy machine, or in a container that may not
    use all visible processors, products of 256 rows take up to fifty times as long with several threads, and
    norms of a million numbers up to twenty times. Contexts of several threads may overlap: the last one to
    end restores the former limit.
    """
    _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave()


class _Limit:
    """The limit of the process, and the number of contexts that hold it."""

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
    """Return the controller of the BLAS that this process has loaded; finding it takes milliseconds."""
    return ThreadpoolController()
