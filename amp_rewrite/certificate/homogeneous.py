"""Degrees of homogeneity of a model's values in a factor, where they are known.

A value of degree d is its value for a factor of 1, times the factor to the power d. A value of degree 0
depends on the factor only in rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

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
_Rule = Callable[["_Site"], int | None]


class Degrees:
    """The degrees of a model's values, from those of the factors."""

    def __init__(self, model: Numbered, factors: Mapping[int, int]) -> None:
        self.model = model
        self.of = dict(factors)

    def settle(self, targets: Collection[int]) -> list[Node]:
        """Compute the degrees; return the nodes that some values depend on, producers first.

        Raises DifferentError for an unknown degree, and for one other than 0 of these values or of those that
        enter or leave a body.
        """
        nodes = _before(self.model, targets)
        for node in nodes:
            self._settle(node)
        bodies = [body for node in nodes for body in node.bodies or ()]
        roots = self.model.roots
        for number in (*targets, *(roots[value] for body in bodies for value in body.outputs)):
            if self.of.get(number, 0):
                raise _dependence_error(number)
        return nodes

    def _settle(self, node: Node) -> None:
        if node.first in self.of or not any(self.of.get(number, 0) for number in node.inputs):
            return
        rule = None if node.bodies else _RULES.get(node.operator)
        degree = rule and rule(_Site(self, node))
        if degree is None:
            raise _dependence_error(node.first)
        outputs = 1 if node.operator == ("", "Dropout") else node.count
        self.of.update(dict.fromkeys(range(node.first, node.first + outputs), degree))


def _dependence_error(number: int) -> DifferentError:
    return DifferentError("it depends on the loss scale", (MISSING, number, ""))


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


class _Site:
    """A node with the degrees of its inputs."""

    def __init__(self, degrees: Degrees, node: Node) -> None:
        self.model, self.node = degrees.model, node
        self.degrees = [degrees.of.get(number, 0) for number in node.inputs]

    def common(self, ports: Sequence[int]) -> int | None:
        """Return the degree that these inputs share if all others have degree 0; zeros have any degree."""
        degrees_of_ports = {
            self.degrees[port] for port in ports if port < len(self.degrees) and not self.is_zero(port)
        }
        others = (degree for port, degree in enumerate(self.degrees) if port not in ports)
        return degrees_of_ports.pop() if len(degrees_of_ports) == 1 and not any(others) else None

    def is_zero(self, port: int) -> bool:
        """Return whether an input is omitted or zero."""
        return self.node.inputs[port] == MISSING or _is_zero(self.model, self.node.inputs[port])

    def said(self, name: str, default: str) -> str:
        """Return an attribute of type string."""
        bound = attributes_of(self.node).get(name)
        return default if bound is None else bound.attribute.s.decode(errors="replace")


def _is_zero(model: Numbered, number: int) -> bool:
    """Return whether a value is a constant of zeros, stored or filled."""
    node = model.makers[number]
    while node is not None and node.operator[0] == "" and node.operator[1] in KEEPING_ZERO:
        number = node.inputs[0]
        node = model.makers[number]
    if node is not None:
        fill = attributes_of(node).get("value") if node.operator == ("", "ConstantOfShape") else None
        return node.operator == ("", "ConstantOfShape") and (fill is None or _zeros(model, fill.attribute.t))
    return isinstance(model.stored.get(number), TensorProto) and _zeros(model, model.stored[number])


def _zeros(model: Numbered, tensor: TensorProto) -> bool:
    small = np.prod(tensor.dims, dtype=float) <= LARGEST_ZERO
    return bool(small) and not np.asarray(tensors.whole(tensor, model.folder)).any()


def _together(*ports: int) -> _Rule:
    return lambda site: site.common(ports or range(len(site.degrees)))


def _pad(site: _Site) -> int | None:
    constant = site.said("mode", "constant") == "constant"
    value = attributes_of(site.node).get("value")
    if constant and value is not None and value.attribute.f:
        return None  # of old versions: the padding does not scale
    return site.common((0, 2) if constant else (0,))


def _resize(site: _Site) -> int | None:
    crops = site.said("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return None if crops else site.common((0,))


def _scatter(site: _Site) -> int | None:
    return site.common((0, 2)) if site.said("reduction", "none") in ("none", "add") else None


def _cast(site: _Site) -> int | None:
    return site.common((0,)) if site.model.kinds[site.node.first] in (FLOAT, DOUBLE) else None


def _product(site: _Site) -> int | None:
    """Return the degree of a product of two factors; addends must have the same."""
    degree = sum(site.degrees[:2])
    addends = [port for port in range(2, len(site.degrees)) if not site.is_zero(port)]
    return degree if all(site.degrees[port] == degree for port in addends) else None


_RULES: Mapping[tuple[str, str], _Rule] = {
    **{("", name): _together(0) for name in (*LINEAR_IN_THE_FIRST, "Split")},
    **{("", name): _together() for name in LINEAR_IN_ALL},
    **{("", name): _product for name in ("Mul", "MatMul", "Gemm", "Conv", "ConvTranspose")},
    **{("com.microsoft", name): _product for name in ("FusedMatMul", "TransposeMatMul")},
    **{("", name): _scatter for name in ("Scatter", "ScatterElements", "ScatterND")},
    **{("", name): lambda _: 0 for name in ("Shape", "Size")},
    **{("", name): _cast for name in ("Cast", "CastLike")},
    ("", "Div"): lambda site: site.degrees[0] - site.degrees[1],
    ("", "Einsum"): lambda site: sum(site.degrees),
    ("", "Where"): _together(1, 2),
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
    **{("com.microsoft", name): _together(0) for name in LINEAR_GRADIENTS},
    **{("com.microsoft", name): _together(2) for name in ("GatherGrad", "GatherNDGrad")},
}
"""Rules by the definitions of ONNX; onnxruntime's gradients, in com.microsoft, are linear in dY."""
