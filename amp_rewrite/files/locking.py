"""Locks on folders between runs of amp-rewrite; the system releases a lock when its process ends."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Generator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: stages of killed runs stay there
    fcntl = None

PATIENCE = 60.0
"""Seconds to wait for a folder: runs lock it to choose names and to move files, not while they write."""

_PAUSE = 0.01


Lock = contextlib.AbstractContextManager[object]
"""A lock on a folder, which ends with the context; without effect where the system has no locks."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Lock a folder against other runs, and other threads of this one.

    Raises TimeoutError, an OSError, if another holds it for a minute (PATIENCE).
    """
    end = time.monotonic() + PATIENCE
    while (lock := _attempt(folder)) is None:
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, f"another program keeps {folder} locked")
        time.sleep(_PAUSE)
    with lock:
        yield


def taken(folder: Path) -> Lock:
    """Return the lock of a folder that only this run uses."""
    return _attempt(folder) or contextlib.nullcontext()


def free(folder: Path) -> Lock | None:
    """Return the lock of an unlocked folder; None if it is locked, or the system cannot tell."""
    lock = _attempt(folder)
    return None if isinstance(lock, contextlib.nullcontext) else lock


def _attempt(folder: Path) -> Lock | None:
    """Return a lock; None if another run has it, and one without effect if the folder cannot be locked."""
    if fcntl is None:
        return contextlib.nullcontext()
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # not readable, or gone: using it raises a better error
        return contextlib.nullcontext()
    lock = contextlib.ExitStack()
    lock.callback(os.close, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        is_busy = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        return None if is_busy else contextlib.nullcontext()
    return lock
