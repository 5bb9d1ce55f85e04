"""NumPy's .npz archives: the declared arrays are checked against a model's inputs before any is read."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError
from amp_rewrite.files import reading
from amp_rewrite.running import memory
from amp_rewrite.running.inputs import coerce
from amp_rewrite.running.inputs.model_inputs import Input

SAVE = "save arrays of numbers with numpy.savez"
"""The remedy for an invalid archive, or one with other contents."""


def read(path: Path, inputs: Mapping[str, Input]) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` by name.

    A few kilobytes can inflate to any size, so only headers are inflated until all of them are accepted: each
    array must be an input of the model with the right shape, and together they must fit into memory. Raises
    FeedError otherwise, and for a file that is damaged, encrypted, or not an archive.
    """
    try:
        with reading.open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            coerce.refuse_unknown(members, inputs, path)
            headers = [_header(archive, member) for member in members.values()]
            for name, header in zip(members, headers, strict=True):
                coerce.check_declared(inputs[name], header.shape, header.dtype, path)
            _refuse_huge(headers, path)
            return {name: _array(archive, member) for name, member in members.items()}
    except FeedError:
        raise
    except OSError as error:
        raise FeedError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except Exception as error:  # zipfile, its codecs and NumPy's header parser have no common base class
        problem = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        raise FeedError(f"cannot be read ({problem})", where=path, remedy=SAVE) from error


@dataclass(frozen=True, slots=True)
class _Header:
    """The shape and element type that a member declares."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """The size of the array in bytes."""
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
"""The flag bit of encrypted members in zip archives."""

_PARSERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,  # differs in field names only, and no input has fields
}


def _refuse_huge(headers: Iterable[_Header], path: Path) -> None:
    """FeedError if the arrays, whose open dimensions can have any size, do not fit into memory."""
    needed, free = sum(header.size for header in headers), memory.available()
    if free is not None and needed > free:
        raise FeedError(
            f"would take {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB of memory are free",
            where=path,
            remedy="give a smaller sample",
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


_LONGEST = 200
"""Characters of a library's error message that are shown: it may quote file contents."""
