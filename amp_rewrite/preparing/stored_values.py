"""Access to the constants of a model: reading, replacing in place, adding and removing them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.model import constants, graph_edits, traversal
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types.element_types import tensor as tensor_type

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class StoredValues:
    """The constants of a model that no caller can override, and edits of them."""

    def __init__(self, model: ir.Model) -> None:
        self._root = model.graph
        self._lists_inputs = model.ir_version < CONSTANT_INPUTS_BELOW

    @functools.cached_property
    def _names(self) -> UniqueNames:
        return UniqueNames(traversal.graphs(self._root))

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of a constant; None for other values, and for overridable ones."""
        if value is None or (value.is_graph_input() and not self._lists_inputs):
            return None
        return constants.stored_as(value)

    def replace(self, reader: ir.Node, port: int, tensor: ir.TensorProtocol) -> None:
        """Replace the constant at one input of a node.

        A constant with other consumers stays, and the node gets a new one.
        """
        value = reader.inputs[port]
        assert value is not None, "what is replaced is there"
        if len(value.uses()) > 1 or value.is_graph_output() or value.producer() is not None:
            reader.replace_input_with(port, self.add(value, "folded", tensor, reader))
            self.forget(value)
        else:
            value.const_value = tensor

    def add(self, like: ir.Value, suffix: str, tensor: ir.TensorProtocol, reader: ir.Node) -> ir.Value:
        """Add a constant in the graph of its consumer, named after another value."""
        value = ir.Value(name=self._names.of_value(like, suffix), const_value=tensor)
        self._register(value, tensor, graph_edits.graph_of(reader))
        return value

    def _register(self, value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> None:
        tensor.name = value.name
        value.type, value.shape = tensor_type(tensor.dtype), ir.Shape(tensor.shape.numpy())
        graph_edits.register(value, graph, as_input=self._lists_inputs and graph is self._root)

    def put(self, tensors: Mapping[ir.Value, ir.TensorProtocol]) -> None:
        """Replace computed values by constants of the same names."""
        replacements = {
            value: ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=tensor)
            for value, tensor in tensors.items()
        }
        graph_edits.replace_uses(replacements)
        for value, replacement in replacements.items():
            self._register(replacement, tensors[value], graph_edits.graph_of(value))

    def forget(self, value: ir.Value | None) -> None:
        """Remove a constant without consumers."""
        if value is None or value.uses() or value.is_graph_output():
            return
        node, graph = value.producer(), value.graph
        if node is not None and isinstance(graph, ir.Graph):
            graph.remove(node, safe=True)
        elif isinstance(graph, ir.Graph) and value.is_initializer():
            if value.is_graph_input():
                graph.inputs.remove(value)
            graph.initializers.pop(value.name or "")


def is_number(dtype: ir.DataType) -> bool:
    """Return whether the elements of this type are numbers of whole bytes."""
    return dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and dtype.bitwidth >= _BYTE


_BYTE = 8
