"""What the parts of a proof share: the two models, what was used, and how they differ."""

from __future__ import annotations

from collections import Counter

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import stored_values, tensors
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.certificate.masks import Masks
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered
from amp_rewrite.certificate.ranks import Ranks
from amp_rewrite.certificate.stored_values import Comparison, Held

Pair = tuple[int, int]
"""A value of the original and one of the result that are to be equal."""


_BROADCAST, _AS_NUMPY = frozenset(("Add", "Div", "Max", "Min", "Pow")), 7


class Proof:
    """Two numbered models, and the uses of licences so far."""

    def __init__(self, original: Numbered, rewritten: Numbered) -> None:
        self.original, self.rewritten = original, rewritten
        self.uses: Counter[Licence] = Counter()
        self._half: int | None = None
        self._by_name: dict[str, int] | None = None
        self.ranks, self.ranks_after = Ranks(original), Ranks(rewritten, believed=False)
        self._masks = Masks(original)

    def same_kind(self, left: int, right: int) -> None:
        """DifferentError for values of different types; what nobody knows of one is as of the other."""
        kinds = self.original.kinds[left], self.rewritten.kinds[right]
        if kinds[0] != kinds[1] and None not in kinds:
            raise DifferentError("the two are of different types", (left, right, ""))

    def named(self, name: str) -> int:
        """A value of the original that has a name, MISSING where there is none."""
        if self._by_name is None:
            self._by_name = {name: number for number, name in enumerate(self.original.names) if name}
        return self._by_name.get(name, MISSING)

    def held(self, left: int, right: int) -> tuple[Held, Held]:
        """Two stored values."""
        a, b = self.original, self.rewritten
        return Held(a.stored[left], a.folder), Held(b.stored[right], b.folder)

    def used(self) -> dict[Licence, int]:
        """The licences that were used, and how often."""
        return {licence: self.uses[licence] for licence in Licence if self.uses[licence]}

    def count(self, found: Comparison, at: Pair | None) -> None:
        """Counts what the comparison of a pair of values used; raises DifferentError where it failed, and for
        a clamp of what is no mask, as a number by itself or the default of an input (None) never is.
        """
        place = None if at is None else (*at, "")
        if found.problem:
            raise DifferentError(found.problem, place)
        if found.half is not None:
            self.to_half(found.half, at)
        if found.uses:
            if found.uses[Licence.CLAMPED] and (at is None or not self._masks.is_mask(at[0])):
                raise DifferentError("it is clamped, and more than a mask of a softmax", place)
            self.uses.update(found.uses)

    def to_half(self, half: int, at: Pair | None) -> None:
        """Notes the half type of a value; DifferentError where another has another one."""
        if self._half not in (None, half):
            raise DifferentError("values are stored in two half types", None if at is None else (*at, ""))
        self._half = half

    def made(self, number: int, operator: str) -> Node:
        """The node of the result that makes a value alone; DifferentError where it is another.

        One of two operands broadcasts as NumPy does: before opset 7 an attribute said otherwise.
        """
        node = self.rewritten.makers[number]
        if node is None or node.operator != ("", operator) or node.count != 1:
            raise DifferentError(f"no {operator} stands in the place of the node")
        is_plain = node.version >= _AS_NUMPY and not node.proto.attribute and len(node.inputs) == 2
        if operator in _BROADCAST and not is_plain:
            raise DifferentError(f"the {operator} in the place of the node may broadcast otherwise")
        return node

    def stored_number(self, number: int, expected: Array) -> None:
        """Proves that the result stores these numbers, none of them clamped; DifferentError where it does
        not.
        """
        tensor = self.rewritten.stored.get(number)
        if not isinstance(tensor, TensorProto):
            raise DifferentError("a number is not stored")
        if np.isnan(expected).any():
            raise DifferentError("a number is NaN, which operators treat differently")
        self.count(stored_values.compare_array(expected, Held(tensor, self.rewritten.folder)), None)

    def array(self, number: int) -> Array | None:
        """A value that the original stores as float32; None where it does not."""
        tensor = self.original.stored.get(number)
        if not isinstance(tensor, TensorProto) or tensor.data_type != TensorProto.FLOAT:
            return None
        return tensors.whole(tensor, self.original.folder)
