"""The state shared by the parts of a proof: the two models, the licences used, and the softmax masks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from amp_rewrite.certificate import rescaling, stored_tensors
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import Array, Clamps
from amp_rewrite.certificate.exact_types import ExactTypes
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered
from amp_rewrite.certificate.shapes import Ranks
from amp_rewrite.certificate.stored_tensors import Held, TensorComparison
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.operators.catalogue import ATTENTION_RESULTS, LARGEST_MASK_SCALE, find
from amp_rewrite.operators.record import ALL, FIRST, Move, Role, Trait

Pair = tuple[int, int]
"""A value of the original and one of the result that must be equal."""


_AS_NUMPY = 7


class Proof:
    """Two numbered models, and the uses of licences so far."""

    def __init__(self, original: Numbered, rewritten: Numbered) -> None:
        self.original, self.rewritten = original, rewritten
        self.uses: Counter[Licence] = Counter()
        self.changes = rescaling.Changes()
        self._half: int | None = None
        self._fill: float | None = None
        self.types, self.types_after = ExactTypes(original), ExactTypes(rewritten)
        self.ranks, self.ranks_after = Ranks(original), Ranks(rewritten, believed=False)
        self._masks, self._lifts = Masks(original), Lifts(rewritten, self.types_after)

    def same_kind(self, left: int, right: int) -> None:
        """Raise DifferentError for values of different kinds; an unknown kind matches any other."""
        kinds = self.original.kinds[left], self.rewritten.kinds[right]
        if kinds[0] != kinds[1] and None not in kinds:
            raise DifferentError("the two are of different types", (left, right, ""))

    def has_same_type(self, left: int, right: int) -> bool:
        """Return whether two values, proved equal but for Casts, have one element type.

        What nothing tells is what custom operators make, the same of the same types. Any Cast tells.
        """
        before, after = self.types.of(left), self.types_after.of(right)
        return abs(before) == after if after else before <= 0

    def compare(self, one: Any, other: Any, *, rank: bool = False) -> TensorComparison:
        """Return the comparison of a tensor of the original, or one in memory, with one of the result."""
        held = Held(one, self.original.folder), Held(other, self.rewritten.folder)
        return stored_tensors.compare(*held, rank=rank)

    def count(self, comparison: TensorComparison, at: Pair | None) -> None:
        """Count the licences that the comparison of a pair used. Raises DifferentError if the comparison
        failed, for a clamp of anything but a mask, and for a lift that is no rounding. Single numbers, which
        have no counterpart (MISSING), are never masks; defaults of inputs (`at` is None) are not lifted or
        rescaled either.
        """
        left, right = at or (MISSING, MISSING)
        place = (left, right, "") if left else None
        if comparison.problem:
            raise DifferentError(comparison.problem, place)
        uses = comparison.uses
        if comparison.exponent and (at is None or uses[Licence.CLAMPED]):
            raise DifferentError(f"it is stored as 2^{-comparison.exponent} of the original", place)
        if comparison.half is not None:
            self.to_half(comparison.half, at)
        if comparison.clamps is not None:
            self._count_clamps(comparison.clamps, left, place)
        if uses or comparison.least is not None:
            self._count_lifts(comparison, right, place)
        if at is not None:
            rescaling.record(self.changes.tensors, right, comparison.exponent, place)
        if uses:
            self.uses.update(uses)

    def _count_clamps(self, clamps: Clamps, left: int, place: tuple[int, int, str] | None) -> None:
        """Raise DifferentError for clamped numbers that are no mask, or of another fill than others."""
        if not (left and self._masks.is_mask(left, clamps.signs)):
            raise DifferentError("it is clamped, and more than a mask of a softmax", place)
        if self._fill not in (None, clamps.fill):
            raise DifferentError("masks are clamped to two numbers", place)
        self._fill = clamps.fill

    def _count_lifts(
        self, comparison: TensorComparison, right: int, place: tuple[int, int, str] | None
    ) -> None:
        """Record the exponents that a bound may have, which is the least number of half; raise DifferentError
        for numbers lifted where that is no rounding.
        """
        is_lifted = comparison.uses[Licence.LIFTED]
        element = _FLOAT if comparison.uses[Licence.RESTORED] else _FLOAT16
        may_be_rounding = right != MISSING and (is_lifted or comparison.least is not None)
        is_rounding = may_be_rounding and self._lifts.are_roundings(right, element)
        if is_lifted and not is_rounding:
            raise DifferentError("it is lifted, and more than an addend or a bound in half", place)
        if is_rounding and comparison.least is not None:
            self.changes.least[right] = comparison.least

    def to_half(self, half: int, at: Pair | None) -> None:
        """Record the half type of a value; DifferentError if another value has the other one."""
        if self._half not in (None, half):
            raise DifferentError("values are stored in two half types", None if at is None else (*at, ""))
        self._half = half

    def made(self, number: int, operator: str) -> Node:
        """Return the node of the result that computes only this value; DifferentError for another operator.

        A binary operator must broadcast as in NumPy; before opset 7, an attribute could select otherwise.
        """
        node = self.rewritten.makers[number]
        if node is None or node.operator != ("", operator) or node.count != 1:
            raise DifferentError(f"expected the operator {operator} here")
        is_plain = node.version >= _AS_NUMPY and not node.proto.attribute and len(node.inputs) == 2
        traits = find(*node.operator).traits
        broadcasts = traits & Trait.ELEMENTWISE and not traits & Trait.KEEPS_RANK
        if broadcasts and not is_plain:
            raise DifferentError(f"the {operator} here may broadcast otherwise")
        return node

    def stored_number(self, number: int, expected: Array) -> None:
        """Prove that the result stores these numbers, none clamped; raises DifferentError."""
        tensor = self.rewritten.stored.get(number)
        if not isinstance(tensor, TensorProto):
            raise DifferentError("a number is not stored")
        if np.isnan(expected).any():
            raise DifferentError("a number is NaN, which operators treat differently")
        self.count(self.compare(numpy_helper.from_array(expected), tensor), (MISSING, number))


# ---- lifted numbers


_FLOAT, _FLOAT16 = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
_FACTOR, _OTHER = "factor of a product", "anything else"


class Lifts:
    """The constants of a result in which lifting small numbers is no more than a rounding."""

    def __init__(self, model: Numbered, types: ExactTypes) -> None:
        self._model, self._types = model, types

    def are_roundings(self, number: int, element: int) -> bool:
        """Return whether all that reads a constant adds it, or selects the larger or smaller, in this element
        type, or adds up products with it, and its largest element is a normal number of half.
        """
        allowed = {element, _FACTOR} if self._is_large(number) else {element}
        return self._ends.get(number, set()) <= allowed

    @functools.cached_property
    def _ends(self) -> Mapping[int, set[int | str]]:
        """The element types in which sums and bounds read a value, rearranged or not, and its other uses."""
        ends: dict[int, set[int | str]] = {value: {_OTHER} for value in self._model.leaving()}
        for node in reversed(self._model.nodes):
            record = find(*node.operator)
            is_moved = record.move in (Move.REARRANGES, Move.SELECTS) and len(record.masks) <= 1
            for port, value in enumerate(node.inputs):
                end: set[int | str] = {_OTHER}
                if record.channel is not None or record.traits & Trait.RECURRENT:
                    end = {_FACTOR}
                elif record.traits & Trait.ADDS or record.move is Move.BOUNDS:
                    end = {self._types.of(self._model.read(node)[port])}
                elif is_moved and not port:
                    end = {each for output in node.numbers for each in ends.get(output, ())}
                ends.setdefault(value, set()).update(end)
        return ends

    def _is_large(self, number: int) -> bool:
        array = self._model.array(number)
        return array is not None and bool((np.abs(array) >= FLOAT16.least_normal).any())


# ---- masks


_MOST_ELEMENTS = 1 << 20
"""The most elements of a constant factor that is read."""

_INTEGERS = frozenset(
    int(getattr(TensorProto, name))
    for name in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)


class Masks:
    """The values of a model that are consumed only as masks of softmaxes."""

    def __init__(self, model: Numbered) -> None:
        self._model = model
        self._whole = set[int]()

    def is_mask(self, number: int, signs: Set[int]) -> bool:
        """Return whether numbers of these signs in a value end in softmaxes, and nowhere else, never as
        positive numbers, which others may cancel, and never much smaller; linear for all values together.
        """
        factors = self._factors.get(number, {})
        return bool(factors) and all(
            sign * each <= 0 and least >= 1 / LARGEST_MASK_SCALE
            for each, least in factors.items()
            for sign in signs
        )

    @functools.cached_property
    def _factors(self) -> Mapping[int, Mapping[int, float]]:
        """The least factor of the masks before softmaxes, by its sign: 0 is that of a product with integers,
        as the mask says.
        """
        self._find_whole()
        masks: dict[int, dict[int, float]] = {}
        others, roots = self._model.leaving(), self._model.roots
        for node in reversed(self._model.nodes):
            if roots[node.first] != node.first:
                continue  # a Cast that is looked through
            record, goes_elsewhere = find(*node.operator), not others.isdisjoint(node.numbers)
            ends = [row for number in node.numbers for row in masks.get(number, {}).items()]
            for port, value in enumerate(node.inputs):
                if record.roles.get(port) is Role.SCORES and node.count <= ATTENTION_RESULTS:
                    factor, behind = (1, 1.0), [(1, 1.0)]
                elif record.traits & Trait.MEASURES or self._is_largest(node, port):
                    continue
                else:
                    carries = not (goes_elsewhere or node.operator[0])
                    factor, behind = self._factor(node, port) if carries else None, ends
                if factor is None:
                    others.add(value)
                    continue
                for sign, least in behind:
                    row = masks.setdefault(value, {})
                    row[sign * factor[0]] = min(row.get(sign * factor[0], np.inf), least * factor[1])
        return {number: row for number, row in masks.items() if number not in others}

    def _factor(self, node: Node, port: int) -> tuple[int, float] | None:
        """Return the sign and the least size of what a node multiplies a mask by; None if it is none behind
        the node.
        """
        name, inputs = node.operator[1], node.inputs
        if name in ("Mul", "Div") and (name, port) != ("Div", 1):
            scales = self._scales(inputs[1 - port])
            if scales is not None:
                return scales[0], scales[1] if name == "Mul" else 1 / scales[2]
            return (0, 1.0) if name == "Mul" and self._is_whole(inputs[1 - port]) else None
        flips = name == "Neg" or (name == "Sub" and port == 1)
        return (-1 if flips else 1, 1.0) if port in find("", name).masks else None

    def _is_largest(self, node: Node, port: int) -> bool:
        """Return whether an input is the maximum of another, which a softmax subtracts."""
        maker = self._model.makers[node.inputs[port]]
        if maker is None or maker.operator != ("", "ReduceMax") or node.operator != ("", "Sub"):
            return False
        return port == 1 and maker.inputs[0] == node.inputs[0]

    def _scales(self, number: int) -> tuple[int, float, float] | None:
        """Return the sign, the least and the largest size of a constant near 1 in magnitude; None for any
        other value.
        """
        array = self._model.array(number, _MOST_ELEMENTS)
        if array is None or not array.size:
            return None
        signs, sizes = np.sign(array.astype(np.float32)), np.abs(array.astype(np.float32))
        least, largest = float(sizes.min()), float(sizes.max())
        is_near = least >= 1 / LARGEST_MASK_SCALE and largest <= LARGEST_MASK_SCALE
        return (int(signs.flat[0]), least, largest) if is_near and (signs == signs.flat[0]).all() else None

    def _is_whole(self, number: int) -> bool:
        """Return whether the elements of a value are integers by its type, or by its producers."""
        if number in self._whole or self._model.kinds[number] in _INTEGERS:
            return True
        array = self._model.array(number, _MOST_ELEMENTS) if self._model.makers[number] is None else None
        return array is not None and np.array_equal(array, np.rint(array.astype(np.float32)))

    def _find_whole(self) -> None:
        for node in self._model.nodes:
            name = node.operator[1]
            ports = FIRST if name == "Cast" else ALL if name == "Mul" else find("", name).masks
            read = (value for port, value in enumerate(node.inputs) if port in ports)
            if not node.operator[0] and ports and all(map(self._is_whole, read)):
                self._whole.update(node.numbers)
