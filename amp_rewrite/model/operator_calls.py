"""Nodes, as the catalogue of operators reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from amp_rewrite.model import patterns
from amp_rewrite.operators import catalogue, scaling
from amp_rewrite.operators.record import Operator
from amp_rewrite.operators.scaling import Equation


def record_of(node: ir.Node) -> Operator:
    """Return what is known of the operator of a node."""
    return catalogue.find(node.domain, node.op_type)


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node, its ports of floats, and whether the factors of their values are positive (scaling.Call)."""

    node: ir.Node
    ports: Sequence[int]
    is_positive: bool = True
    may_round: bool = False

    @property
    def version(self) -> int:
        """The version of its operator, the newest if the node does not say."""
        return onnx.defs.onnx_opset_version() if self.node.version is None else self.node.version

    def attribute(self, name: str) -> object:
        """Return an attribute; None if it is absent, NaN where the caller of a function has it."""
        attribute = self.node.attributes.get(name)
        return None if attribute is None else math.nan if attribute.is_ref() else attribute.value

    def number(self, port: int) -> float | None:
        """Return the only element of a stored input; None for any other input."""
        return patterns.scalar(self.node.inputs[port])

    def equations(self) -> Sequence[Equation]:
        """Return the equations of the exponents at its ports; none for an operator without any."""
        return scaling.equations(record_of(self.node).scales, self)
