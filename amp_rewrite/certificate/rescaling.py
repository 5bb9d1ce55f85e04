"""Proof that powers of two in a result cancel: values stored as v * 2^-e, with an exponent e each.

The proof compares the original with a result whose stored values, epsilons and Muls are multiplied back
(`Changes`). Here that one is proved equal to the actual result: exponents follow from those of what is
stored, and are 0 at the outputs. A multiplication by a power of two commutes with rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import frexp, inf, prod

import numpy as np
from onnx import AttributeProto, TensorProto

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.element_checks import TINY
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, attributes_of
from amp_rewrite.certificate.value_kinds import FLOAT, FLOATS
from amp_rewrite.onnx_facts.operators import (
    COMPARISONS,
    KEEPING_ZERO,
    LARGEST_EXPONENT,
    LARGEST_ZERO,
    LINEAR_IN_ALL,
    LINEAR_IN_THE_FIRST,
    NORMS,
    POSITIVE_IN_THE_FIRST,
    PRODUCTS_OF_TWO,
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
        exponents.settle()
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


Rule = Callable[["_Site"], "int | Sequence[int] | None"]
"""Returns the exponent of all outputs of a node, or of each; None if they have none."""


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
        targets = [model.roots[number] for _, number in model.outputs]
        nodes = _before(model, targets)
        for node in nodes:
            self._settle_node(node)
        bodies = [body for node in nodes for body in node.bodies or ()]
        for number in (*targets, *(model.roots[value] for body in bodies for value in body.outputs)):
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
            self._apply_rule(node)
        data, _ = NORMS.get(node.operator, ((), ()))
        if data and _Site(self, node).shared(data) != self.changes.norms.get(node.first, 0):
            problem = "its epsilon does not have the exponent of its data"
            raise DifferentError(problem, (MISSING, node.first, ""))

    def _apply_rule(self, node: Node) -> None:
        rule = None if node.bodies else _RULES.get(node.operator)
        exponents = None if rule is None else rule(_Site(self, node))
        if exponents is None:
            raise self._refusal(node.first)
        if isinstance(exponents, int):
            exponents = [exponents] * (1 if node.operator[1] in _OTHER_OUTPUTS else node.count)
        self.of.update(zip(range(node.first, node.first + node.count), exponents, strict=False))

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


_OTHER_OUTPUTS = frozenset(("Dropout", "MaxPool", "TopK"))
"""Operators whose outputs after the first have exponent 0."""


def _before(model: Numbered, targets: Sequence[int]) -> list[Node]:
    """Return the nodes that values depend on, including those in bodies, producers first."""
    nodes, visits = list[Node](), set[int]()
    stack = [(number, False) for number in targets]
    while stack:
        number, is_done = stack.pop()
        node = model.makers[number]
        if node is None or (node.first in visits and not is_done):
            continue
        if is_done:
            nodes.append(node)
            continue
        visits.add(node.first)
        stack.append((node.first, True))
        stack.extend((value, False) for value in node.inputs)
        stack.extend((model.roots[value], False) for body in node.bodies or () for value in body.outputs)
    return nodes


class _Site:
    """A node with the exponents of its inputs."""

    def __init__(self, exponents: _Exponents, node: Node) -> None:
        self.model, self.node = exponents.model, node
        self.exponents = [exponents.of.get(number, 0) for number in node.inputs]
        self._least_of = exponents.changes.least

    def common(self, ports: Sequence[int]) -> int | None:
        """Return the exponent that these inputs share if all others have 0; zeros and infinities have any."""
        others = (exponent for port, exponent in enumerate(self.exponents) if port not in ports)
        return None if any(others) else self.shared(ports)

    def shared(self, ports: Sequence[int]) -> int | None:
        """Return the exponent that these inputs share, 0 if all are zero; None without one."""
        exponents = {self.exponents[port] for port in self._present(ports)}
        if len(exponents) > 1:
            exponents = {self.exponents[port] for port in self._present(ports) if self._least(port) is None}
        exponent = exponents.pop() if exponents else 0
        return exponent if not exponents and self.fits(exponent, ports) else None

    def fits(self, exponent: int, ports: Sequence[int]) -> bool:
        """Return whether these inputs have an exponent, may have it, or are omitted."""
        others = (port for port in self._present(ports) if self.exponents[port] != exponent)
        return all((least := self._least(port)) is not None and least <= exponent for port in others)

    def _present(self, ports: Sequence[int]) -> list[int]:
        inputs = self.node.inputs
        return [port for port in ports if port < len(inputs) and inputs[port] != MISSING]

    def _least(self, port: int) -> float | None:
        """Return the least exponent of an input that has any from there on, -inf for zeros and infinities
        that are stored or filled; None for any other input.
        """
        model, number = self.model, self.node.inputs[port]
        node = model.makers[number]
        while node is not None and node.operator[0] == "" and node.operator[1] in KEEPING_ZERO:
            number = node.inputs[0]
            node = model.makers[number]
        if node is not None:
            fill = attributes_of(node).get("value") if node.operator == ("", "ConstantOfShape") else None
            filled = fill is None or self._has_any(fill.attribute.t)
            return -inf if node.operator == ("", "ConstantOfShape") and filled else None
        tensor = model.stored.get(number)
        is_zero = isinstance(tensor, TensorProto) and self._has_any(tensor)
        return -inf if is_zero else self._least_of.get(number)

    def _has_any(self, tensor: TensorProto) -> bool:
        """Return whether numbers are 0 or infinite, or none: the same times any power of two."""
        if np.prod(tensor.dims, dtype=float) > LARGEST_ZERO:
            return False
        array = np.asarray(tensors.whole(tensor, self.model.folder))
        return not (np.isfinite(array) & (array != 0)).any()

    def said(self, name: str, default: str) -> str:
        """Return an attribute of type string."""
        bound = attributes_of(self.node).get(name)
        return default if bound is None else bound.attribute.s.decode(errors="replace")


def _together(*ports: int) -> Rule:
    """Return the rule for an operator that is linear in these inputs together, by default in all."""
    return lambda site: site.common(ports or range(len(site.exponents)))


def _pad(site: _Site) -> int | None:
    constant = site.said("mode", "constant") == "constant"
    if constant and _is_set(site, "value"):
        return None  # of old versions: the padding does not scale
    return site.common((0, 2) if constant else (0,))


def _is_set(site: _Site, name: str) -> bool:
    """Return whether an attribute of a node is stated, and not 0."""
    bound = attributes_of(site.node).get(name)
    return bound is not None and bool(bound.attribute.i or bound.attribute.f)


def _bounded(site: _Site) -> int | None:
    return None if _is_set(site, "min") or _is_set(site, "max") else site.common(range(len(site.exponents)))


def _compared(*ports: int) -> Rule:
    """Return the rule for an operator that compares these inputs, by default all, with each other."""
    return lambda site: None if _together(*ports)(site) is None else 0


def _scatter(site: _Site) -> int | None:
    return None if site.said("reduction", "none") == "mul" else site.common((0, 2))


def _resize(site: _Site) -> int | None:
    return None if _is_set(site, "extrapolation_value") else site.common((0,))


def _whole(exponent: float) -> int | None:
    return int(exponent) if exponent.is_integer() else None


def _power(site: _Site) -> int | None:
    model, number = site.model, site.node.inputs[1]
    tensor = model.stored.get(number)
    if site.exponents[1] or not isinstance(tensor, TensorProto) or prod(tensor.dims) != 1:
        return None
    return _whole(site.exponents[0] * float(tensors.whole(tensor, model.folder).reshape(())))


def _norm(site: _Site) -> Sequence[int] | None:
    data, scale = (site.shared(ports) for ports in NORMS[site.node.operator])
    others = {*range(len(site.exponents))}.difference(*NORMS[site.node.operator])
    if data is None or scale is None or not site.fits(0, [*others]) or _is_set(site, "activation"):
        return None
    is_simplified = site.node.operator == ("", "SimplifiedLayerNormalization")
    return (scale, -data) if is_simplified else (scale, data, -data, data)


def _batch_norm(site: _Site) -> int | None:
    data, exponent = site.shared((0, 3)), site.exponents[0] + site.exponents[1]
    is_plain = site.node.count == 1 and site.node.version >= _AS_NUMPY and not site.exponents[4]
    is_plain = is_plain and not _is_set(site, "training_mode")
    return exponent if is_plain and data == site.exponents[0] and site.fits(exponent, (2,)) else None


def _blockwise_product(site: _Site) -> int | None:
    exponent = site.exponents[0] + site.exponents[2]
    return exponent if site.fits(0, (1, 3, 4)) and site.fits(exponent, (5,)) else None


def _cast(site: _Site) -> int | None:
    kind = site.model.kinds[site.node.first]
    if kind == TensorProto.BOOL:
        return 0  # whether a number is 0
    return site.common((0,)) if kind in (FLOAT, TensorProto.DOUBLE) else None


def _product(site: _Site) -> int | None:
    """Return the exponent of a product of two factors; addends must have the same."""
    exponent = sum(site.exponents[:2])
    return exponent if site.fits(exponent, range(2, len(site.exponents))) else None


_RULES: Mapping[tuple[str, str], Rule] = {
    **{("", name): _together(0) for name in (*LINEAR_IN_THE_FIRST, *POSITIVE_IN_THE_FIRST, "Split")},
    **{("", name): _together() for name in (*LINEAR_IN_ALL, "Max", "Min")},
    **{("", name): _compared() for name in COMPARISONS},
    **{("", name): lambda _: 0 for name in UNSCALED},
    **dict.fromkeys(PRODUCTS_OF_TWO, _product),
    **dict.fromkeys(NORMS, _norm),
    **{("", name): _scatter for name in ("Scatter", "ScatterElements", "ScatterND")},
    **{("", name): _cast for name in ("Cast", "CastLike")},
    ("", "Clip"): _bounded,
    ("", "Div"): lambda site: site.exponents[0] - site.exponents[1],
    ("", "Einsum"): lambda site: sum(site.exponents),
    ("", "Where"): _together(1, 2),
    ("", "Pad"): _pad,
    ("", "Sqrt"): lambda site: _whole(site.exponents[0] / 2),
    ("", "Pow"): _power,
    ("", "Reciprocal"): lambda site: -site.exponents[0],
    ("", "ReduceSumSquare"): lambda site: 2 * site.exponents[0],
    ("", "BatchNormalization"): _batch_norm,
    ("", "QuantizeLinear"): _compared(0, 1),
    ("", "Resize"): _resize,
    ("", "DequantizeLinear"): _together(1),
    ("", "DynamicQuantizeLinear"): lambda site: (0, site.exponents[0], 0),
    ("com.microsoft", "RotaryEmbedding"): _together(0),
    ("com.microsoft", "MatMulNBits"): _blockwise_product,
}
"""Rules for positive factors, by the definitions of ONNX and onnxruntime."""
