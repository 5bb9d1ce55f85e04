"""Imports in the midst of a program, for which a fork waits.

A fork copies a module that another thread is importing half done, and locked: the child would wait for it
without end. So what is imported late is imported under a lock that a fork takes first.
"""

from __future__ import annotations

import concurrent.futures.thread
import importlib
import logging
import os
import threading
from types import ModuleType

_LOCK = threading.RLock()

_FIRST = (logging, concurrent.futures.thread)
"""These have a fork take locks of theirs, in the reverse order of registration. Modules under import may need
them, and must not register them while a fork waits for ours: so these two come first.
"""

if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def import_module(name: str) -> ModuleType:
    """The module of that name, as `importlib.import_module` gives it."""
    with _LOCK:
        return importlib.import_module(name)
