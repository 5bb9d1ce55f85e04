"""The shapes of one node's inputs and outputs, as FLOP formulas use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.flops.type_protos import Shape


class UnknownShape(Exception):  # noqa: N818 - not an error: the FLOPs of the node are unknown
    """A shape that a formula needs is unknown."""


@dataclass(frozen=True, slots=True)
class PortShapes:
    """The shapes of a node's inputs and outputs; `input` and `output` raise UnknownShape."""

    node: ir.Node
    shape_of: Callable[[ir.Value | None], Shape | None]

    def input(self, port: int) -> Shape:
        """The shape of an input."""
        return self._known(self.node.inputs[port] if self.has(port) else None)

    def output(self, port: int = 0) -> Shape:
        """The shape of an output."""
        return self._known(self.node.outputs[port] if port < len(self.node.outputs) else None)

    def has(self, port: int) -> bool:
        """Whether the node has this input."""
        return port < len(self.node.inputs) and self.node.inputs[port] is not None

    def _known(self, value: ir.Value | None) -> Shape:
        shape = self.shape_of(value)
        if shape is None:
            raise UnknownShape
        return shape


Formula = Callable[[PortShapes], int]
"""FLOPs of a node; raises UnknownShape when it needs a shape that is unknown."""
