"""Imports in the midst of a program, which a fork waits for.

A fork copies a module that another thread is importing half initialised, and locked: the child would wait for
it forever. So late imports hold a lock that a fork takes first.
"""

from __future__ import annotations

import concurrent.futures.thread
import importlib
import logging
import os
import threading
from types import ModuleType

LOCK = threading.RLock()
"""What a fork takes first: nothing that is done under it is copied half done."""

_FIRST = (logging, concurrent.futures.thread)
"""Both register locks that a fork takes, in the reverse order of registration. A module under import may need
them, and must not register them while a fork waits for our lock: so they are imported first.
"""

if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


def import_module(name: str) -> ModuleType:
    """The module of that name, as `importlib.import_module` gives it."""
    with LOCK:
        return importlib.import_module(name)
