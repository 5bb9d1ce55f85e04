"""Memory in bytes: available to this process, its peak so far, and in use on a CUDA device."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from amp_rewrite.running import latency
from amp_rewrite.running.sessions import Device

SOURCES = (
    (Path("/proc/meminfo"), r"^MemAvailable:\s+(\d+) kB$", 1024),
    (Path("/sys/fs/cgroup/memory.max"), r"^(\d+)$", 1),  # "max" without a limit
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), r"^(\d+)$", 1),  # cgroup v1
)
"""Limits of the available memory: file, pattern, and unit in bytes."""
STATUS = Path("/proc/self/status")


def available() -> int | None:
    """Bytes that this process can allocate before the system runs short of memory or a container's limit
    is reached; None if unknown.
    """
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    for file, pattern, unit in SOURCES:
        if (found := _read_number(file, pattern)) is not None:
            yield found * unit
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no such function, no such name
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def in_use(device: Device) -> int | None:
    """On CUDA what is in use on the device, by any process (with nvidia-ml-py); elsewhere the peak of this
    process so far (Linux). None if unknown.
    """
    if device is Device.CUDA:
        return latency.query(lambda module, handle: int(module.nvmlDeviceGetMemoryInfo(handle).used))
    peak = _read_number(STATUS, r"^VmHWM:\s+(\d+) kB$")  # getrusage includes the parent's, from before exec
    return None if peak is None else peak * 1024


def _read_number(file: Path, pattern: str) -> int | None:
    try:
        found = re.search(pattern, file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
