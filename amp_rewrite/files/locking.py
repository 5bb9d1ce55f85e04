"""Locks on folders, for runs of our own: they end with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Generator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: there nothing that is left over is ever removed
    fcntl = None

_PATIENCE = 60.0
"""Seconds to wait for a folder: runs hold one to look for names and to move files, not while they write."""

_PAUSE = 0.01


class Lock(contextlib.AbstractContextManager["Lock"]):
    """A lock on a folder, held until it is closed; nothing where the system has none."""

    def __init__(self, file: int | None = None) -> None:
        self._file = file

    @property
    def is_held(self) -> bool:
        """Whether there is a lock at all."""
        return self._file is not None

    def close(self) -> None:
        """Lets go of the folder."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def held(folder: Path) -> Generator[None]:
    """Has other runs, and other threads of this one, wait with what they do in a folder.

    Raises TimeoutError, an OSError, when somebody else holds it for a minute.
    """
    end = time.monotonic() + _PATIENCE
    while (lock := _attempt(folder)) is None:
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, f"another program keeps {folder} locked")
        time.sleep(_PAUSE)
    with lock:
        yield


def taken(folder: Path) -> Lock:
    """The lock of a folder that is ours alone."""
    return _attempt(folder) or Lock()


def free(folder: Path) -> Lock | None:
    """The lock of a folder that nobody holds; None where somebody does, or where there is no way to know."""
    lock = _attempt(folder)
    return lock if lock is not None and lock.is_held else None


def _attempt(folder: Path) -> Lock | None:
    """A lock; None where another has it, and one of nothing where the folder cannot be locked."""
    if fcntl is None:
        return Lock()
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # not readable, or gone: what is done there says so itself
        return Lock()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        return None if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else Lock()
    return Lock(file)
