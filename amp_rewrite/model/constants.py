"""Float32 tensors stored in the model: initializers, and the values of Constant nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.onnx_types import control_flow

CONSTANT_INPUTS_BELOW = 4
"""Before this IR version, every initializer is also listed as a graph input, and still constant."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A stored float32 tensor and its value in the graph; `node` is its Constant node, if any."""

    value: ir.Value
    tensor: ir.TensorProtocol
    node: ir.Node | None = None


def find(model: ir.Model) -> dict[ir.Value, StoredTensor]:
    """Every float32 tensor stored in the main graph and the graphs nested in it, by its value.

    From IR version 4 on, the caller can override an initializer that is also a graph input: it is not
    constant, and not included.
    """
    overridable = model.ir_version >= CONSTANT_INPUTS_BELOW
    return {s.value: s for s in _in_graph(model.graph, overridable=overridable)}


def _in_graph(graph: ir.Graph, *, overridable: bool) -> Iterator[StoredTensor]:
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        if not (overridable and value.is_graph_input()):
            yield StoredTensor(value, tensor)
    for node in graph:
        tensor = constant(node) if node.op_type == "Constant" else None
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT:
            yield StoredTensor(node.outputs[0], tensor, node)
        for body in control_flow.bodies(node):
            yield from _in_graph(body, overridable=overridable)


def numbers(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """The values of a tensor; ModelError if they do not match its type and shape, or cannot be read."""
    try:
        array = tensor.numpy()
    except (AssertionError, TypeError, ValueError) as error:
        raise _damaged(tensor, f"does not fit its type and shape ({error})") from error
    except MemoryError:
        raise
    except Exception as error:  # a lazy tensor calls a function of the caller's
        raise _damaged(tensor, f"cannot be read ({type(error).__name__}: {error})") from error
    if array.shape != dims(tensor):  # nothing else checks what a lazy tensor returns
        raise _damaged(tensor, f"does not fit its type and shape (it has the shape {array.shape})")
    return array


def dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The shape of a tensor; onnx-ir makes that of a protobuf anew each time, at five times the cost."""
    return tuple(tensor.raw.dims if type(tensor) is ir.serde.TensorProtoTensor else tensor.shape.numpy())


def _damaged(tensor: ir.TensorProtocol, problem: str) -> ModelError:
    what = f"the content of '{tensor.name}'" if tensor.name else "the content of an unnamed tensor"
    return ModelError(f"{what} {problem}", where="the given model", remedy=EXPORT_AGAIN)


def constant(node: ir.Node) -> ir.TensorProtocol | None:
    """The value of a Constant node as a tensor; None for strings, sparse tensors and attribute references,
    and for any other node.
    """
    if node.op_type != "Constant" or node.domain:
        return None
    for attribute in node.attributes.values():
        if attribute.is_ref():
            return None
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.value
        dtype = _SCALARS.get(attribute.type)
        if dtype is not None:
            return ir.tensor(np.asarray(attribute.value, dtype))
    return None


_SCALARS = {
    ir.AttributeType.FLOAT: np.float32,
    ir.AttributeType.FLOATS: np.float32,
    ir.AttributeType.INT: np.int64,
    ir.AttributeType.INTS: np.int64,
}


def stored_as(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor that the model stores for this value; None for a computed value or a graph input."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    return constant(node) if node is not None else None
