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
from dataclasses import dataclass
from functools import partial
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
    end, future = _END.get(), Future[T]()
    if end is not None:
        end.slice()  # so that nothing starts after the limit
    thread = threading.Thread(target=partial(copy_context().run, _settle, future, work), daemon=True)
    try:
        thread.start()
        while not future.done():
            wait([future], _SLICE if end is None else end.slice())
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
        self._left = None if seconds is None else _checked(seconds, name)

    @property
    def is_over(self) -> bool:
        """Return whether no time is left."""
        return self._left is not None and self._left <= 0

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Count the time inside; once none is left, every `call` raises TimeLimitError."""
        if self._left is None:
            yield
            return
        began, outer = time.monotonic(), _END.get()
        own = _End(began + self._left, self)
        token = _END.set(own if outer is None or own.at < outer.at else outer)
        try:
            yield
        finally:
            _END.reset(token)
            self._left -= time.monotonic() - began


def _checked(seconds: Any, name: str) -> float:
    with contextlib.suppress(OverflowError):  # an integer that is too large for a float
        if isinstance(seconds, Real) and seconds is not True and 0 < float(seconds) < math.inf:
            return float(seconds)
    raise OptionError(f"{name} is not a number of seconds above 0", remedy="leave it out for no limit")


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a time limit."""

    at: float
    limit: TimeLimit

    def slice(self) -> float:
        """Return the longest wait from now; TimeLimitError if no time is left."""
        remaining = self.at - time.monotonic()
        if remaining > 0:
            return min(remaining, _SLICE)
        name = self.limit.name
        raise TimeLimitError(
            f"running the models took longer than {name} allows ({self.limit.seconds:g} s)",
            remedy=f"give {name} more seconds",
        )


_END: ContextVar[_End | None] = ContextVar("_END", default=None)
