"""Degrees of homogeneity of a model's values in a factor, where they are known.

A value of degree d is its value for a factor of 1, times the factor to the power d. A value of degree 0
depends on the factor only in rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from types import MappingProxyType

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, attributes_of
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.onnx_facts.operators import (
    KEEPING_ZERO,
    LARGEST_ZERO,
    LINEAR_GRADIENTS,
    LINEAR_IN_ALL,
    LINEAR_IN_THE_FIRST,
)

DOUBLE = TensorProto.DOUBLE
Rule = Callable[["Site"], "int | Sequence[int] | None"]
"""Returns the degree of all outputs of a node, or of each; None if they have none."""


class Degrees:
    """The degrees of a model's values by rules of operators, from those of the factors. Constants have any
    degree from the `least` on.
    """

    def __init__(
        self,
        model: Numbered,
        factors: Mapping[int, int],
        rules: Mapping[tuple[str, str], Rule] | None = None,
        least: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.model, self.least = model, least
        self.of = dict(factors)
        self._rules = rules or LINEAR

    def settle(self, targets: Collection[int]) -> list[Node]:
        """Compute the degrees; return the nodes that some values depend on, producers first.

        Raises DifferentError for an unknown degree, and for one other than 0 of these values or of those that
        enter or leave a body.
        """
        nodes = _before(self.model, targets)
        for node in nodes:
            self.settle_node(node)
        bodies = [body for node in nodes for body in node.bodies or ()]
        roots = self.model.roots
        for number in (*targets, *(roots[value] for body in bodies for value in body.outputs)):
            if self.of.get(number, 0):
                raise self.refusal(number)
        return nodes

    def settle_node(self, node: Node) -> None:
        """Compute the degrees of a node's outputs from those of its inputs."""
        if node.first in self.of or not any(self.of.get(number, 0) for number in node.inputs):
            return
        rule = None if node.bodies else self._rules.get(node.operator)
        degrees = None if rule is None else rule(Site(self, node))
        if degrees is None:
            raise self.refusal(node.first)
        if isinstance(degrees, int):
            degrees = [degrees] * (1 if node.operator[1] in _OTHER_OUTPUTS else node.count)
        self.of.update(zip(range(node.first, node.first + node.count), degrees, strict=False))

    def is_neutral(self, array: np.ndarray) -> bool:
        """Return whether numbers are the same times any factor."""
        return not array.any()

    def refusal(self, number: int) -> DifferentError:
        """Return the error for a value whose degree is not known, or not 0 where it must be."""
        return DifferentError("it depends on the loss scale", (MISSING, number, ""))


_OTHER_OUTPUTS = frozenset(("Dropout", "MaxPool", "TopK"))
"""Operators whose outputs after the first have degree 0."""


def _before(model: Numbered, targets: Collection[int]) -> list[Node]:
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


class Site:
    """A node with the degrees of its inputs."""

    def __init__(self, degrees: Degrees, node: Node) -> None:
        self.model, self.node = degrees.model, node
        self.degrees = [degrees.of.get(number, 0) for number in node.inputs]
        self._is_neutral, self._least_of = degrees.is_neutral, degrees.least

    def common(self, ports: Sequence[int]) -> int | None:
        """Return the degree that these inputs share if all others have degree 0; zeros have any degree."""
        others = (degree for port, degree in enumerate(self.degrees) if port not in ports)
        return None if any(others) else self.shared(ports)

    def shared(self, ports: Sequence[int]) -> int | None:
        """Return the degree that these inputs share, 0 if all are zero; None without one."""
        degrees = {self.degrees[port] for port in self._present(ports)}
        if len(degrees) > 1:
            degrees = {self.degrees[port] for port in self._present(ports) if self._least(port) is None}
        degree = degrees.pop() if degrees else 0
        return degree if not degrees and self.fits(degree, ports) else None

    def fits(self, degree: int, ports: Sequence[int]) -> bool:
        """Return whether these inputs have a degree, may have it, or are omitted."""
        return all(
            self.degrees[port] == degree or ((least := self._least(port)) is not None and least <= degree)
            for port in self._present(ports)
        )

    def _present(self, ports: Sequence[int]) -> list[int]:
        inputs = self.node.inputs
        return [port for port in ports if port < len(inputs) and inputs[port] != MISSING]

    def _least(self, port: int) -> float | None:
        """Return the least degree of an input that has any from there on, -inf for zeros that are stored or
        filled; None for any other input.
        """
        model, number = self.model, self.node.inputs[port]
        node = model.makers[number]
        while node is not None and node.operator[0] == "" and node.operator[1] in KEEPING_ZERO:
            number = node.inputs[0]
            node = model.makers[number]
        if node is not None:
            fill = attributes_of(node).get("value") if node.operator == ("", "ConstantOfShape") else None
            filled = fill is None or self._has_zeros(fill.attribute.t)
            return -inf if node.operator == ("", "ConstantOfShape") and filled else None
        tensor = model.stored.get(number)
        is_zero = isinstance(tensor, TensorProto) and self._has_zeros(tensor)
        return -inf if is_zero else self._least_of.get(number)

    def _has_zeros(self, tensor: TensorProto) -> bool:
        small = np.prod(tensor.dims, dtype=float) <= LARGEST_ZERO
        return bool(small) and self._is_neutral(np.asarray(tensors.whole(tensor, self.model.folder)))

    def said(self, name: str, default: str) -> str:
        """Return an attribute of type string."""
        bound = attributes_of(self.node).get(name)
        return default if bound is None else bound.attribute.s.decode(errors="replace")


def together(*ports: int) -> Rule:
    """Return the rule for an operator that is linear in these inputs together, by default in all."""
    return lambda site: site.common(ports or range(len(site.degrees)))


def _pad(site: Site) -> int | None:
    constant = site.said("mode", "constant") == "constant"
    value = attributes_of(site.node).get("value")
    if constant and value is not None and value.attribute.f:
        return None  # of old versions: the padding does not scale
    return site.common((0, 2) if constant else (0,))


def _resize(site: Site) -> int | None:
    crops = site.said("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return None if crops else site.common((0,))


def _scatter(site: Site) -> int | None:
    return site.common((0, 2)) if site.said("reduction", "none") in ("none", "add") else None


def _cast(site: Site) -> int | None:
    kind = site.model.kinds[site.node.first]
    if kind == TensorProto.BOOL:
        return 0  # whether a number is 0
    return site.common((0,)) if kind in (FLOAT, DOUBLE) else None


def _product(site: Site) -> int | None:
    """Return the degree of a product of two factors; addends must have the same."""
    degree = sum(site.degrees[:2])
    return degree if site.fits(degree, range(2, len(site.degrees))) else None


LINEAR: Mapping[tuple[str, str], Rule] = {
    **{("", name): together(0) for name in (*LINEAR_IN_THE_FIRST, "Split")},
    **{("", name): together() for name in LINEAR_IN_ALL},
    **{("", name): _product for name in ("Mul", "MatMul", "Gemm", "Conv", "ConvTranspose")},
    **{("com.microsoft", name): _product for name in ("FusedMatMul", "TransposeMatMul")},
    **{("", name): _scatter for name in ("Scatter", "ScatterElements", "ScatterND")},
    **{("", name): lambda _: 0 for name in ("Shape", "Size")},
    **{("", name): _cast for name in ("Cast", "CastLike")},
    ("", "Div"): lambda site: site.degrees[0] - site.degrees[1],
    ("", "Einsum"): lambda site: sum(site.degrees),
    ("", "Where"): together(1, 2),
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
    **{("com.microsoft", name): together(0) for name in LINEAR_GRADIENTS},
    **{("com.microsoft", name): together(2) for name in ("GatherGrad", "GatherNDGrad")},
}
"""Rules by the definitions of ONNX; onnxruntime's gradients, in com.microsoft, are linear in dY."""
