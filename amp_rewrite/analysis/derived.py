"""Values that are computed from stored tensors and shapes alone."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from amp_rewrite.analysis.operators import ARITHMETIC, MOVERS

_DERIVED = MOVERS | ARITHMETIC | {"Cast", "Constant", "ConstantOfShape", "Exp", "Reciprocal", "Shape"}
"""Operators that give constants for constant inputs; shapes count as constants here."""


class Derived:
    """Says of a value whether it is derived so, looking back a few nodes; `stored` are the stored tensors."""

    def __init__(self, stored: Container[ir.Value]) -> None:
        self._stored = stored
        self._varying: set[ir.Value] = set()

    def has(self, value: ir.Value, depth: int = 12) -> bool:
        """Whether a value is computed from stored tensors and shapes by at most `depth` nodes."""
        if value in self._stored or (value.const_value is not None and not value.is_graph_input()):
            return True
        node = value.producer()
        if node is None or depth == 0 or value in self._varying:
            return False
        if node.op_type in ("Constant", "Shape"):
            return True
        found = node.op_type in _DERIVED and all(self.has(v, depth - 1) for v in node.inputs if v is not None)
        if not found:
            self._varying.add(value)
        return found
