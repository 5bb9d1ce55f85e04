"""NumPy's archives of arrays: what they declare is held against a model's inputs before any of it is read."""

from __future__ import annotations

import contextlib
import math
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError
from amp_rewrite.files import reading
from amp_rewrite.running.inputs import coerce
from amp_rewrite.running.inputs.model_inputs import Input

SAVE = "save arrays of numbers with numpy.savez"
"""What helps with an archive that is none, or holds something else."""


def read(path: Path, inputs: Mapping[str, Input]) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` by name.

    A few kilobytes can inflate to any size, so nothing is inflated but a header until all headers fit: each
    array is an input of the model, in its shape, and they all find room in memory. Raises FeedError for what
    does not fit, and for a file that is damaged, encrypted, or no archive.
    """
    try:
        with reading.open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            refuse_unknown(members, inputs, path)
            headers = [_header(archive, member) for member in members.values()]
            for name, header in zip(members, headers, strict=True):
                coerce.check(inputs[name], header.shape, header.dtype, path)
            _refuse_huge(headers, path)
            return {name: _array(archive, member) for name, member in members.items()}
    except FeedError:
        raise
    except OSError as error:
        raise FeedError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except Exception as error:  # zipfile, its codecs and NumPy's parser of headers have no common class
        raise FeedError(f"cannot be read ({_why(error)})", where=path, remedy=SAVE) from error


def refuse_unknown(names: Iterable[str], inputs: Mapping[str, Input], where: Path) -> None:
    """FeedError for a name that is none of the inputs'."""
    for name in names:
        if name not in inputs:
            known = ", ".join(inputs) or "no inputs"
            raise FeedError(f"the model has no input '{name}'", where=where, remedy=f"it has {known}")


@dataclass(frozen=True, slots=True)
class _Header:
    """What a member says of its array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """The bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    if member.flag_bits & _ENCRYPTED:
        raise ValueError("it is encrypted")
    with archive.open(member) as file:
        shape, _, dtype = _PARSERS[npy.read_magic(file)](file)
        follows = member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    header = _Header(shape, dtype)
    if min(shape, default=0) < 0 or header.size != follows:
        raise ValueError(f"{member.filename} does not have the size of its shape")
    return header


_ENCRYPTED = 1
"""The first flag of a member, as the format of zip archives has it."""

_PARSERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,  # other only in the names of fields, and no input has fields
}


def _refuse_huge(headers: Iterable[_Header], path: Path) -> None:
    """FeedError where arrays that an input's open dimensions allow would not find room."""
    needed, free = sum(header.size for header in headers), available_memory()
    if free is not None and needed > free:
        raise FeedError(
            f"would take {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB of memory are free",
            where=path,
            remedy="give a smaller sample",
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _why(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST] or type(error).__name__


_LONGEST = 200
"""Characters of a library's complaint that are told: it may quote what it read."""


def available_memory() -> int | None:
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
