"""Proof that powers of two in a result cancel: values stored as v * 2^-e, with an exponent e each.

The proof compares the original with a result whose stored values, epsilons and Muls are multiplied back
(`Changes`). Here that one is proved equal to the actual result: exponents follow from those of what is
stored, and are 0 at the outputs. A multiplication by a power of two commutes with rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import frexp, prod

import numpy as np
from onnx import AttributeProto, TensorProto

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.element_checks import TINY
from amp_rewrite.certificate.homogeneous import LINEAR, Degrees, Rule, Site, together
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, attributes_of
from amp_rewrite.certificate.value_kinds import FLOATS
from amp_rewrite.onnx_facts.operators import (
    COMPARISONS,
    LARGEST_EXPONENT,
    NORMS,
    POSITIVE_IN_THE_FIRST,
    UNSCALED,
)


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
        exponents.settle([model.roots[number] for _, number in model.outputs])
        exponents.refuse_large()
    return count


# ---- Muls that a rewrite inserts


_PRODUCT = ("", "Mul")

_AS_NUMPY = 7
"""The first version in which products broadcast as in NumPy, and norms do not train."""


def _factor_and_power(model: Numbered, node: Node | None) -> tuple[int, int]:
    """Return a factor and the exponent of the power of two that a Mul multiplies it by; 0 for other nodes."""
    if node is None or node.operator != _PRODUCT or node.version < _AS_NUMPY:
        return MISSING, 0
    for port, number in enumerate(node.inputs if node.count == 1 and len(node.inputs) == 2 else ()):
        tensor = model.stored.get(number)
        if isinstance(tensor, TensorProto) and not tensor.dims and tensor.data_type in FLOATS:
            fraction, exponent = frexp(float(tensors.whole(tensor, model.folder)))
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


class _Exponents(Degrees):
    """The exponents of a result's values."""

    def __init__(self, model: Numbered, changes: Changes) -> None:
        super().__init__(model, changes.tensors, _RULES, changes.least)
        self._changes = changes

    def settle_node(self, node: Node) -> None:
        """Compute the exponents of a node's outputs, without the Muls that the original does not have."""
        power = self._changes.products.get(node.first, 0)
        if power:
            factor, _ = _factor_and_power(self.model, node)
            self.of[node.first] = self.of.get(factor, 0) + power
            return
        super().settle_node(node)
        data, _ = NORMS.get(node.operator, ((), ()))
        if data and Site(self, node).shared(data) != self._changes.norms.get(node.first, 0):
            problem = "its epsilon does not have the exponent of its data"
            raise DifferentError(problem, (MISSING, node.first, ""))

    def refuse_large(self) -> None:
        """Raise DifferentError for a value that float32 may not hold as it is stored."""
        for number, exponent in self.of.items():
            if abs(exponent) > LARGEST_EXPONENT:
                problem = f"it is stored as 2^{-exponent} of the original, and may leave float32"
                raise DifferentError(problem, (MISSING, number, ""))

    def is_neutral(self, array: np.ndarray) -> bool:
        """Return whether numbers are 0 or infinite, or none."""
        return not (np.isfinite(array) & (array != 0)).any()

    def refusal(self, number: int) -> DifferentError:
        """Return the error for a value whose exponent is not known, or not 0 where it must be."""
        node = self.model.makers[number]
        problem = f"it leaves as 2^{-self.of.get(number, 0)} of the original"
        if number not in self.of and node is not None:
            powers = ", ".join(f"2^{-self.of.get(each, 0)}" for each in node.inputs)
            problem = f"it reads values as {powers} of the original, which do not cancel"
        return DifferentError(problem, (MISSING, number, ""))


def _is_set(site: Site, name: str) -> bool:
    """Return whether an attribute of a node is stated, and not 0."""
    bound = attributes_of(site.node).get(name)
    return bound is not None and bool(bound.attribute.i or bound.attribute.f)


def _bounded(site: Site) -> int | None:
    return None if _is_set(site, "min") or _is_set(site, "max") else site.common(range(len(site.degrees)))


def _compared(*ports: int) -> Rule:
    """Return the rule for an operator that compares these inputs, by default all, with each other."""
    return lambda site: None if together(*ports)(site) is None else 0


def _scatter(site: Site) -> int | None:
    return None if site.said("reduction", "none") == "mul" else site.common((0, 2))


def _resize(site: Site) -> int | None:
    return None if _is_set(site, "extrapolation_value") else site.common((0,))


def _whole(degree: float) -> int | None:
    return int(degree) if degree.is_integer() else None


def _power(site: Site) -> int | None:
    model, number = site.model, site.node.inputs[1]
    tensor = model.stored.get(number)
    if site.degrees[1] or not isinstance(tensor, TensorProto) or prod(tensor.dims) != 1:
        return None
    return _whole(site.degrees[0] * float(tensors.whole(tensor, model.folder).reshape(())))


def _norm(site: Site) -> Sequence[int] | None:
    data, scale = (site.shared(ports) for ports in NORMS[site.node.operator])
    others = {*range(len(site.degrees))}.difference(*NORMS[site.node.operator])
    if data is None or scale is None or not site.fits(0, [*others]) or _is_set(site, "activation"):
        return None
    is_simplified = site.node.operator == ("", "SimplifiedLayerNormalization")
    return (scale, -data) if is_simplified else (scale, data, -data, data)


def _batch_norm(site: Site) -> int | None:
    data, degree = site.shared((0, 3)), site.degrees[0] + site.degrees[1]
    is_plain = site.node.count == 1 and site.node.version >= _AS_NUMPY and not site.degrees[4]
    is_plain = is_plain and not _is_set(site, "training_mode")
    return degree if is_plain and data == site.degrees[0] and site.fits(degree, (2,)) else None


def _blockwise_product(site: Site) -> int | None:
    degree = site.degrees[0] + site.degrees[2]
    return degree if site.fits(0, (1, 3, 4)) and site.fits(degree, (5,)) else None


_RULES: Mapping[tuple[str, str], Rule] = {
    **LINEAR,
    **{("", name): together(0) for name in POSITIVE_IN_THE_FIRST},
    **{("", name): together() for name in ("Max", "Min")},
    **{("", name): _compared() for name in COMPARISONS},
    **{("", name): lambda _: 0 for name in UNSCALED},
    **dict.fromkeys(NORMS, _norm),
    **{("", name): _scatter for name in ("ScatterElements", "ScatterND")},
    ("", "Clip"): _bounded,
    ("", "Sqrt"): lambda site: _whole(site.degrees[0] / 2),
    ("", "Pow"): _power,
    ("", "Reciprocal"): lambda site: -site.degrees[0],
    ("", "ReduceSumSquare"): lambda site: 2 * site.degrees[0],
    ("", "BatchNormalization"): _batch_norm,
    ("", "QuantizeLinear"): _compared(0, 1),
    ("", "Resize"): _resize,
    ("", "DequantizeLinear"): together(1),
    ("", "DynamicQuantizeLinear"): lambda site: (0, site.degrees[0], 0),
    ("com.microsoft", "RotaryEmbedding"): together(0),
    ("com.microsoft", "MatMulNBits"): _blockwise_product,
}
"""Rules for positive factors, by the definitions of ONNX and onnxruntime."""
