"""The shapes at the ports of one node, as a formula asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.flops.protos import Shape


class Unknown(Exception):  # noqa: N818 - no error: what is missing is told by a count
    """A shape that a formula needs is not known."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The shapes at a node's ports; asking for one that is not known raises Unknown."""

    node: ir.Node
    shape_of: Callable[[ir.Value | None], Shape | None]

    def read(self, port: int) -> Shape:
        """The shape of an input."""
        return self._known(self.node.inputs[port] if self.has(port) else None)

    def made(self, port: int = 0) -> Shape:
        """The shape of an output."""
        return self._known(self.node.outputs[port] if port < len(self.node.outputs) else None)

    def has(self, port: int) -> bool:
        """Whether there is such an input."""
        return port < len(self.node.inputs) and self.node.inputs[port] is not None

    def _known(self, value: ir.Value | None) -> Shape:
        shape = self.shape_of(value)
        if shape is None:
            raise Unknown
        return shape


Formula = Callable[[Ports], int]
"""FLOPs of a node; raises Unknown when a shape that it needs is not known."""
