"""Native calls, such as a run of onnxruntime, that signals and time limits can interrupt.

Signal handlers run on the main thread, and only while it runs Python. So a native call gets a thread of its
own, and the caller waits in Python: an error raised by a handler, or the end of a time limit, stops the call
and propagates. A call that does not stop, as in a long kernel, is abandoned: the process must exit without
waiting for it (`is_left_behind`).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from numbers import Real
from typing import Any, TypeVar

from amp_rewrite.errors import OptionError, ResourceError, TimeLimitError

T = TypeVar("T")

GRACE = 1.0
"""The seconds within which a call must stop."""


def call(work: Callable[[], T], stop: Callable[[], object]) -> T:
    """Return the result of `work`; `stop` is called from another thread to end it early.

    Raises the errors of `work`, TimeLimitError when a `TimeLimit` is reached, and ResourceError if no
    thread can be started.
    """
    limit, future = _LIMIT.get(), Future[T]()
    limit.wait()  # so that nothing starts after the limit
    thread = threading.Thread(target=copy_context().run, args=(_settle, future, work), daemon=True)
    try:
        thread.start()
        while not future.done():
            wait([future], limit.wait())
    except BaseException as error:
        if isinstance(error, RuntimeError) and thread.ident is None:
            raise ResourceError(f"the system starts no further thread ({error})") from error
        stop()
        _LEFT.append(future)
        wait([future], GRACE)
        raise
    return future.result()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # raised again in the caller
        future.set_exception(error)


_SLICE = 1.0
"""The longest wait in seconds: not all systems run signal handlers while waiting."""

_LEFT: list[Future[Any]] = []


def is_left_behind() -> bool:
    """Return whether a call that was told to stop still runs in the background."""
    return not all(future.done() for future in _LEFT)


class TimeLimit:
    """A limit in seconds on all runs of models together; None for no limit. Errors call it `name`.

    Raises OptionError unless it is a number above zero.
    """

    def __init__(self, seconds: float | None, name: str = "timeout") -> None:
        self.seconds = seconds
        self.name = name
        self._left = math.inf if seconds is None else _checked(seconds, name)
        self._end = math.inf

    @property
    def is_over(self) -> bool:
        """Return whether no time is left."""
        return self._left <= 0

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Count the time inside; once none is left, every `call` raises TimeLimitError."""
        began, outer = time.monotonic(), _LIMIT.get()
        self._end = began + self._left
        token = _LIMIT.set(min(self, outer, key=lambda limit: limit._end))
        try:
            yield
        finally:
            _LIMIT.reset(token)
            self._left -= time.monotonic() - began

    def wait(self) -> float:
        """Return the longest wait from now in seconds; raise TimeLimitError if no time is left."""
        remaining = self._end - time.monotonic()
        if remaining > 0:
            return min(remaining, _SLICE)
        raise TimeLimitError(
            f"running the models took longer than {self.name} allows ({self.seconds:g} s)",
            remedy=f"give {self.name} more seconds",
        )


def _checked(seconds: Any, name: str) -> float:
    with contextlib.suppress(OverflowError):  # an integer that is too large for a float
        if isinstance(seconds, Real) and seconds is not True and 0 < float(seconds) < math.inf:
            return float(seconds)
    raise OptionError(f"{name} is not a number of seconds above 0", remedy="leave it out for no limit")


_NONE = TimeLimit(None)
_LIMIT: ContextVar[TimeLimit] = ContextVar("_LIMIT", default=_NONE)
