"""FLOPs of one node from the shapes of its inputs and outputs.

The catalogue has a formula, or a count by element: data movement counts nothing; a normalisation, a softmax
or an interpolation a small constant; a reduction one for each element that it reads. Integer arithmetic
counts only in quantised products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.model.node_inference import Shape
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.operators.record import Trait


@dataclass(frozen=True, slots=True)
class PortShapes:
    """The shapes of a node's inputs and outputs, as formulas read them (flops.Ports)."""

    node: ir.Node
    shape_of: Callable[[ir.Value | None], Shape | None]

    @property
    def count(self) -> int:
        """The number of inputs."""
        return len(self.node.inputs)

    def input(self, port: int) -> Shape:
        """Return the shape of an input; LookupError where it is unknown."""
        return self._known(self.node.inputs[port])

    def output(self, port: int = 0) -> Shape:
        """Return the shape of an output; LookupError where it is unknown."""
        return self._known(self.node.outputs[port])

    def has(self, port: int) -> bool:
        """Return whether the node has this input."""
        return port < self.count and self.node.inputs[port] is not None

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, a string as text; LookupError if it is absent and has no default."""
        attribute = self.node.attributes.get(name)
        if attribute is not None and not attribute.is_ref():
            return attribute.value
        if default is None:
            raise LookupError(name)
        return default

    def _known(self, value: ir.Value | None) -> Shape:
        shape = self.shape_of(value)
        if shape is None:
            raise LookupError
        return shape


def of_node(
    node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None], *, floats: bool
) -> int | None:
    """Return the FLOPs of one run of a node without its bodies; None when they are unknown.

    `floats` holds if the node has float inputs or outputs: without any, only a quantised product counts.
    """
    record, ports = record_of(node), PortShapes(node, shape_of)
    is_integer = record.traits & Trait.CONVERTS and callable(record.flops)
    if record.flops == 0 or not (floats or is_integer):
        return 0
    if record.flops is None or node.domain not in ("", CONTRIB):
        return None
    try:
        if callable(record.flops):
            return record.flops(ports)
        reads = record.traits & Trait.REDUCES
        return record.flops * math.prod(ports.input(0) if reads else ports.output())
    except (LookupError, ValueError, TypeError, ZeroDivisionError):
        return None  # a shape is unknown, or has fewer dimensions than the operator requires
