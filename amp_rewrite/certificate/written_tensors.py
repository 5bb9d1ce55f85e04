"""Large tensors that are proved while they are written to files: their proof need not read them again."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from amp_rewrite.certificate import element_checks
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.files.file_identity import FileIdentity


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the elements of a tensor lie: from which byte of which file on, of which type, and how many."""

    file: FileIdentity
    offset: int
    data_type: int
    size: int


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written to a file, and which licences it used."""

    source: Extent
    data_type: int
    size: int
    uses: Counter[Licence]


_Start = tuple[int, int, int]
"""A file's device and inode, and a byte of it."""


class WrittenTensors:
    """What was found of tensors while they were written; of a file that has changed since, nothing."""

    def __init__(self) -> None:
        self._found: dict[_Start, _Written] = {}
        self._files: dict[tuple[int, int], FileIdentity] = {}
        self._check = functools.cache(element_checks.between)  # whose memory serves each tensor of a thread
        self._only_result = functools.cache(element_checks.only_result)

    def write(
        self,
        file: BinaryIO,
        data_type: int,
        source: Extent,
        blocks: Iterable[Array],
        convert: Callable[[Array], Array],
    ) -> None:
        """Writes a tensor of a type to a file, from blocks of `source`: as the proof itself rounds a block
        where no other bits would be right, else as `convert` makes it, which is checked.

        What is wrong with a block is found where the tensor is compared: it is only not noted here. Raises
        OSError.
        """
        check = self._check(source.data_type, data_type)
        only_result = self._only_result(source.data_type, data_type)
        start, uses, size, right = file.tell(), Counter[Licence](), 0, check is not None
        for before in blocks:
            after = only_result(before)
            if after is None:
                after = convert(before)
                right = right and check is not None and check(before, after, uses) is None
            file.write(after.astype(after.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
            size += after.size
        if right and size == source.size and Licence.RESTORED not in uses:  # which holds of a whole tensor
            found = os.fstat(file.fileno())
            written = _Written(source, data_type, size, uses)
            self._found[found.st_dev, found.st_ino, start] = written

    def close(self, path: Path) -> None:
        """Says that a file is complete: whoever writes to it now makes what was found of it worthless."""
        found = FileIdentity.of(path.stat())
        self._files[found.device, found.inode] = found

    def uses(self, old: Extent, new: Extent) -> Counter[Licence] | None:
        """The licences that `new` used where it was written from `old`; None where that was not seen."""
        if self._files.get((new.file.device, new.file.inode)) != new.file:
            return None
        found = self._found.get((new.file.device, new.file.inode, new.offset))
        if found is None or (found.source, found.data_type, found.size) != (old, new.data_type, new.size):
            return None
        return found.uses.copy()
