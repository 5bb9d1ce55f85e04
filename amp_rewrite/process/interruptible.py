"""Calls that Python cannot interrupt, such as a run of onnxruntime: what may stop them is heard all the same.

Handlers of signals run on the main thread, and only while it runs Python. So such a call is made on a thread
of its own, and whoever asked waits in Python: an error that a handler raises, or the end of a time limit,
tells the call to stop and goes on. A call that does not stop, as it is in the middle of one long kernel, is
left behind: the process has to end without waiting for it (`is_left_behind`).
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

from amp_rewrite.errors import OptionError, ThreadError, TimeLimitError

T = TypeVar("T")

GRACE = 1.0
"""The seconds that a call has to stop in."""


def call(work: Callable[[], T], stop: Callable[[], object]) -> T:
    """What `work` returns; raises what it raises, TimeLimitError where a `Limit` is reached, and
    ThreadError where no thread can be started.

    `stop` is called from another thread to have the work end early.
    """
    end, done = _END.get(), Future[T]()
    if end is not None:
        end.refuse_to_begin()
    try:
        _start(partial(copy_context().run, partial(_settle, done, work)))
        while not done.done():
            wait((done,), _SLICE if end is None else end.slice())
    except BaseException:
        stop()
        _part_from(done)
        raise
    return done.result()


def _start(work: Callable[[], object]) -> None:
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        raise ThreadError(
            f"the system starts no further thread ({error})",
            remedy="allow this process more memory and more threads (ulimit -v, ulimit -u)",
        ) from error


_SLICE = 1.0
"""The seconds after which a wait begins anew: not all systems run handlers of signals in the midst of one."""


def _settle(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # it is raised where the work was asked for
        done.set_exception(error)


_LEFT: list[Future[Any]] = []


def _part_from(done: Future[Any]) -> None:
    _LEFT.append(done)
    wait((done,), GRACE)


def is_left_behind() -> bool:
    """Whether a call goes on in the background that was told to stop."""
    return not all(done.done() for done in _LEFT)


class TimeLimit:
    """The seconds that running models may take in all; None for no limit. `name` is how the user knows it.

    Raises OptionError for what is no number above zero.
    """

    def __init__(self, seconds: float | None, name: str = "timeout") -> None:
        self.seconds = seconds
        self.name = name
        self._left = None if seconds is None else _checked(seconds, name)

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Takes the time that is spent inside from what is left; then every `call` has a TimeLimitError."""
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
    with contextlib.suppress(OverflowError):  # of a whole number that is too large for a float
        if isinstance(seconds, Real) and seconds is not True and 0 < float(seconds) < math.inf:
            return float(seconds)
    raise OptionError(f"{name} is not a number of seconds above 0", remedy="leave it out for no limit")


@dataclass(frozen=True, slots=True)
class _End:
    """When the time of a limit is up."""

    at: float
    limit: TimeLimit

    def slice(self) -> float:
        """How long to wait now; TimeLimitError when there is no time left."""
        self.refuse_to_begin()
        return min(self.at - time.monotonic(), _SLICE)

    def refuse_to_begin(self) -> None:
        """TimeLimitError when there is no time left."""
        if time.monotonic() >= self.at:
            name = self.limit.name
            raise TimeLimitError(
                f"running the models took longer than {name} allows ({self.limit.seconds:g} s)",
                remedy=f"give {name} more seconds",
            )


_END: ContextVar[_End | None] = ContextVar("_END", default=None)
