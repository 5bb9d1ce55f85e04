"""Small stored values that became half, compared many at a time: each alone costs more than its elements."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import element_checks, stored_values, tensors
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import HALVES
from amp_rewrite.certificate.pairs import Proof

_SMALL, _MANY = 1 << 14, 1 << 17
"""The bytes of a small float32 value, and of those that are compared at once: too few for onnxruntime."""


class SmallValues:
    """The small values of a proof that are still to be compared."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof
        self._waiting: list[tuple[int, int, str]] = []
        self._old: list[bytes] = []
        self._new: list[bytes] = []
        self._bytes = 0

    def add(self, left: int, right: int, output: str) -> bool:
        """Whether a pair is a small float32 value and its half, which is compared later.

        Raises DifferentError as `compare` does.
        """
        a, b = self._proof.original.stored[left], self._proof.rewritten.stored[right]
        content = _content(a, b)
        if content is None:
            return False
        old, new = content
        self._proof.to_half(b.data_type, (left, right))
        self._waiting.append((left, right, output))
        self._old.append(old)
        self._new.append(new)
        self._bytes += len(old)
        if self._bytes > _MANY:
            self.compare()
        return True

    def first(self) -> DifferentError | None:
        """What is wrong with the first value that waits and differs; None where none does."""
        try:
            self.compare()
        except DifferentError as found:
            return found
        return None

    def compare(self) -> None:
        """Compares what waits, one by one where a licence is used; DifferentError for the first that
        differs.
        """
        if not self._waiting:
            return
        _, right, _ = self._waiting[0]
        half, uses = HALVES[self._proof.rewritten.stored[right].data_type], Counter[Licence]()
        old = np.frombuffer(b"".join(self._old), "<f4")
        new = np.frombuffer(b"".join(self._new), half.numpy)
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self._old, self._new = [], []
        if element_checks.rounded(old, new, uses, half) is None and not uses.total():
            return
        for left, right, output in waiting:
            found = stored_values.compare(*self._proof.held(left, right))
            if found.problem:
                raise DifferentError(found.problem, (left, right, output))
            self._proof.count(found, (left, right))


def _content(a: object, b: object) -> tuple[bytes, bytes] | None:
    """The bytes of a small float32 value and of its half; None where they are anything else."""
    if not (isinstance(a, TensorProto) and isinstance(b, TensorProto)):
        return None
    if a.data_type != TensorProto.FLOAT or b.data_type not in HALVES:
        return None
    dims = a.dims[:]
    size = 4 * prod(dims)
    if size > _SMALL or dims != b.dims[:] or (dims and min(dims) < 0):
        return None  # of which `compare` refuses a negative size
    if not (tensors.is_raw(a) and tensors.is_raw(b)):
        return None
    old, new = a.raw_data, b.raw_data
    return (old, new) if 0 < len(old) == size == 2 * len(new) else None
