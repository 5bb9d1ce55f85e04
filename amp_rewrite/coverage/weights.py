"""The tensors that a model stores, and what precision they are read in."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.coverage import precision
from amp_rewrite.coverage.counts import Weight
from amp_rewrite.coverage.precision import Precision
from amp_rewrite.model import constants, traversal
from amp_rewrite.onnx_types.element_types import Types


def find(model: ir.Model, types: Types) -> Iterator[Weight]:
    """All stored tensors, those of Constant nodes included, with their size as they are stored.

    Half are those stored in half, and those that nothing reads but Casts to half. Integers and floats of
    8 bits or less are `other`.
    """
    for value, tensor in _tensors(model):
        yield Weight(value.name or "", _precision(value, tensor, types), tensor.nbytes)


def _tensors(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in traversal.graphs(model.graph):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value
        for node in graph:
            held = constants.constant(node)
            if held is not None:
                yield node.outputs[0], held


def _precision(value: ir.Value, tensor: ir.TensorProtocol, types: Types) -> Precision:
    own = precision.of_type(tensor.dtype)
    if own is not Precision.FULL or value.is_graph_output():
        return own
    readers = {usage.node for usage in value.uses()}
    read_as_half = bool(readers) and all(_casts_to_half(node, types) for node in readers)
    return Precision.HALF if read_as_half else own


def _casts_to_half(node: ir.Node, types: Types) -> bool:
    made = types.get(node.outputs[0])
    is_cast = (node.domain, node.op_type) in precision.CASTS
    return is_cast and made is not None and precision.of_type(made.dtype) is Precision.HALF
