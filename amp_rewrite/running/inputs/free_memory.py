"""How much memory there is for what a file would make of itself."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path


def available() -> int | None:
    """Bytes that this process can have before the system runs short of them, or a container's limit ends
    it; None where nobody says.
    """
    return min(_known(), default=None)


def _known() -> Iterator[int]:
    for file, pattern, unit in _SOURCES:
        with contextlib.suppress(OSError):
            found = re.search(pattern, file.read_text(), re.MULTILINE)
            if found:
                yield int(found[1]) * unit
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no such call, no such name
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_SOURCES = (
    (Path("/proc/meminfo"), r"^MemAvailable:\s+(\d+) kB$", 1024),
    (Path("/sys/fs/cgroup/memory.max"), r"^(\d+)$", 1),  # "max" where there is no limit
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), r"^(\d+)$", 1),  # before cgroup v2
)
