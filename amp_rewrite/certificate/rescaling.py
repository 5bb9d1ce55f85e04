"""Proof that powers of two in a result cancel: values stored as v * 2^-e, with an exponent e each.

The proof compares the original with a result whose stored values, epsilons and Muls are multiplied back
(`Changes`). Here that one is proved equal to the actual result: exponents follow from those of what is
stored, and are 0 at the outputs. A multiplication by a power of two commutes with rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import frexp, inf

import numpy as np
from onnx import AttributeProto, TensorProto, helper

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.element_checks import TINY, Array
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, attributes_of
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.operators import catalogue, scaling
from amp_rewrite.operators.catalogue import KEEPING_ZERO, LARGEST_EXPONENT, LARGEST_ZERO


@dataclass(frozen=True, slots=True)
class Changes:
    """The exponents read from a result, 0 included: of stored values, of the data of norms by their epsilons,
    and the negative ones of the powers of two in Muls that the original does not have. Stored values that are
    the least number of half have any exponent from the `least` on.
    """

    tensors: dict[int, int] = field(default_factory=dict[int, int])
    norms: dict[int, int] = field(default_factory=dict[int, int])
    products: dict[int, int] = field(default_factory=dict[int, int])
    least: dict[int, int] = field(default_factory=dict[int, int])

    def is_same_epsilon(self, norm: Node, before: AttributeProto, after: AttributeProto) -> bool:
        """Return whether the epsilon of a norm is that of the original but for a power of 4; record that."""
        old, new = frexp(before.f), frexp(after.f)
        exponent, rest = divmod(old[1] - new[1], 2)
        is_power = old[0] == new[0] and not rest and before.type == after.type == AttributeProto.FLOAT
        if is_power:
            record(self.norms, norm.first, exponent)
        return is_power and (after.f >= TINY or not exponent)

    def follow_product(self, a: Numbered, b: Numbered, left: int, right: int) -> int:
        """Return the other factor of a value of the result that the original does not multiply by this power
        of two; MISSING for any other value.
        """
        factor, power = _factor_and_power(b, b.makers[right])
        is_added = bool(power) and _is_added(a, b, left, right)
        if power:
            record(self.products, right, -power if is_added else 0)
        return factor if is_added else MISSING


def record(
    exponents: dict[int, int], number: int, exponent: int, place: tuple[int, int, str] | None = None
) -> None:
    """Record the exponent of a value or node; DifferentError if it has another."""
    if exponents.setdefault(number, exponent) != exponent:
        raise DifferentError("it stands for two values that differ by a power of two", place)


def prove(model: Numbered, changes: Changes) -> int:
    """Prove that exponents cancel before the outputs of a result; return the number of changes."""
    parts = changes.tensors, changes.norms, changes.products
    count = sum(sum(map(bool, exponents.values())) for exponents in parts)
    if count:
        exponents = _Exponents(model, changes)
        exponents.settle()
        exponents.refuse_large()
    return count


# ---- Muls that a rewrite inserts


_PRODUCT = ("", "Mul")

_AS_NUMPY = 7
"""The first version in which products broadcast as in NumPy."""


def _factor_and_power(model: Numbered, node: Node | None) -> tuple[int, int]:
    """Return a factor and the exponent of the power of two that a Mul multiplies it by; 0 for other nodes."""
    if node is None or node.operator != _PRODUCT or node.version < _AS_NUMPY:
        return MISSING, 0
    for port, number in enumerate(node.inputs if node.count == 1 and len(node.inputs) == 2 else ()):
        array = model.array(number, 1) if model.kinds[number] == FLOAT else None
        if array is not None and not array.ndim:
            fraction, exponent = frexp(float(array))
            if fraction == 0.5:
                return node.inputs[1 - port], exponent - 1
    return MISSING, 0


def _is_added(a: Numbered, b: Numbered, left: int, right: int) -> bool:
    """Return whether a product of the result begins a longer chain of products than that of the original.

    The other factors need not match: stored powers of two may change places.
    """
    first, second = a.makers[left], b.makers[right]
    if first is not None and first.operator == _PRODUCT and first.inputs[0] == first.inputs[1]:
        return True  # a square
    for _ in range(_LONGEST):
        if second is None or second.operator != _PRODUCT:
            break
        if first is None or first.operator != _PRODUCT:
            return True
        port = int(second.inputs[0] in b.stored)
        first, second = a.makers[first.inputs[port]], b.makers[second.inputs[port]]
    return False


_LONGEST = 64
"""The most products that are followed."""


# ---- exponents of values


class _Exponents:
    """The exponents of a result's values, from those of what is stored and by rules of operators."""

    def __init__(self, model: Numbered, changes: Changes) -> None:
        self.model, self.changes = model, changes
        self.of = dict(changes.tensors)

    def settle(self) -> None:
        """Compute the exponents. Raises DifferentError for one that no rule gives, and for an output of the
        model or of a body that has another than 0.
        """
        model = self.model
        for node in model.nodes:
            self._settle_node(node)
        for number in model.leaving():
            if self.of.get(number, 0):
                raise self._refusal(number)

    def _settle_node(self, node: Node) -> None:
        """Compute the exponents of a node's outputs, without the Muls that the original does not have."""
        power = self.changes.products.get(node.first, 0)
        if power:
            factor, _ = _factor_and_power(self.model, node)
            self.of[node.first] = self.of.get(factor, 0) + power
            return
        if node.first not in self.of and any(self.of.get(number, 0) for number in node.inputs):
            self._solve(node)
        norm = catalogue.find(*node.operator).norm
        if norm is not None and _Call(self, node).shared(norm.data) != self.changes.norms.get(node.first, 0):
            problem = "its epsilon does not have the exponent of its data"
            raise DifferentError(problem, (MISSING, node.first, ""))

    def _solve(self, node: Node) -> None:
        """Compute the exponents of a node's outputs from those of its inputs, by its equations."""
        call = _Call(self, node)
        rows = () if node.bodies else scaling.equations(catalogue.find(*node.operator).scales, call)
        known = scaling.solve(rows, call, call.exponents, call.least)
        if known is None:
            raise self._refusal(node.first)
        self.of.update((node.first + port, known.get(~port, 0)) for port in range(node.count))

    def refuse_large(self) -> None:
        """Raise DifferentError for a value that float32 may not hold as it is stored."""
        for number, exponent in self.of.items():
            if abs(exponent) > LARGEST_EXPONENT:
                problem = f"it is stored as 2^{-exponent} of the original, and may leave float32"
                raise DifferentError(problem, (MISSING, number, ""))

    def _refusal(self, number: int) -> DifferentError:
        """Return the error for a value whose exponent is not known, or not 0 where it must be."""
        node = self.model.makers[number]
        problem = f"it leaves as 2^{-self.of.get(number, 0)} of the original"
        if number not in self.of and node is not None:
            powers = ", ".join(f"2^{-self.of.get(each, 0)}" for each in node.inputs)
            problem = f"it reads values as {powers} of the original, which do not cancel"
        return DifferentError(problem, (MISSING, number, ""))


class _Call:
    """A node with the exponents of its inputs (scaling.Call)."""

    is_positive = may_round = True

    def __init__(self, exponents: _Exponents, node: Node) -> None:
        self.model, self.node, self._least_of = exponents.model, node, exponents.changes.least
        self.version = node.version
        present = [port for port, number in enumerate(node.inputs) if number != MISSING]
        kinds = self.model.kinds[node.first : node.first + node.count]
        floats = [~port for port, kind in enumerate(kinds) if kind in (FLOAT, TensorProto.DOUBLE)]
        floats = [port for port in floats if ~port not in node.left_out]
        self.ports = [*present, *floats]
        self.exponents = {port: exponents.of.get(node.inputs[port], 0) for port in present}

    @functools.cached_property
    def least(self) -> Mapping[int, float]:
        """The inputs that have any exponent from a least one on, -inf for zeros and infinities."""
        limits = {port: self._least(self.node.inputs[port]) for port in self.exponents}
        return {port: limit for port, limit in limits.items() if limit is not None}

    def shared(self, ports: Sequence[int]) -> int | None:
        """Return the exponent that these inputs share, 0 if all may have it; None without one."""
        present = [port for port in ports if port in self.exponents]
        exponents = {self.exponents[port] for port in present}
        if len(exponents) > 1:
            exponents = {self.exponents[port] for port in present if port not in self.least}
        return (exponents.pop() if exponents else 0) if len(exponents) < 2 else None

    def attribute(self, name: str) -> object:
        """Return an attribute; None if it is absent."""
        bound = attributes_of(self.node).get(name)
        value = None if bound is None else helper.get_attribute_value(bound.attribute)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def number(self, port: int) -> float | None:
        """Return the only element of a stored input; None for any other input."""
        array = self.model.array(self.node.inputs[port], 1)
        return float(array.reshape(())) if array is not None and array.size else None

    def _least(self, number: int) -> float | None:
        model, node = self.model, self.model.makers[number]
        while node is not None and node.operator[0] == "" and node.operator[1] in KEEPING_ZERO:
            number = node.inputs[0]
            node = model.makers[number]
        if node is not None:
            fill = attributes_of(node).get("value") if node.operator == ("", "ConstantOfShape") else None
            filled = fill is None or _has_any(tensors.whole(fill.attribute.t, model.folder))
            return -inf if node.operator == ("", "ConstantOfShape") and filled else None
        array = model.array(number, LARGEST_ZERO)
        return -inf if array is not None and _has_any(array) else self._least_of.get(number)


def _has_any(array: Array) -> bool:
    """Return whether numbers are 0 or infinite, or none: the same times any power of two."""
    return not (np.isfinite(array) & (array != 0)).any()
