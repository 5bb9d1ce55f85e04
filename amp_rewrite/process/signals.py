"""Signals that wait while something is done that must not stop halfway."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator


@contextlib.contextmanager
def delayed() -> Generator[None]:
    """Delays SIGINT and SIGTERM to the end of the context; without effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda n, _: arrived.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    for number in arrived:
        signal.raise_signal(number)
