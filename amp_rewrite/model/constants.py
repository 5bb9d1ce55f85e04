"""Float32 tensors that the model stores: initializers, and what Constant nodes hold."""

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
"""Before this IR version every initializer is listed as an input, and is constant all the same."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A stored float32 tensor and the value that it is read as; `node` is its Constant node, if any."""

    value: ir.Value
    tensor: ir.TensorProtocol
    node: ir.Node | None = None


def find(model: ir.Model) -> dict[ir.Value, StoredTensor]:
    """Every stored float32 tensor of the main graph and the graphs below it, by its value.

    From IR version 4 on, an initializer that is also an input may be overridden by the caller: it is
    no constant, and not among them.
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
        tensor = constant(node)
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT:
            yield StoredTensor(node.outputs[0], tensor, node)
        for body in control_flow.bodies(node):
            yield from _in_graph(body, overridable=overridable)


def numbers(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """What a tensor holds; ModelError where that does not fit its type and shape, or cannot be read."""
    try:
        array = tensor.numpy()
    except (AssertionError, TypeError, ValueError) as error:
        raise _damaged(tensor, f"does not fit its type and shape ({error})") from error
    except MemoryError:
        raise
    except Exception as error:  # a lazy tensor calls what its maker gave it
        raise _damaged(tensor, f"cannot be read ({type(error).__name__}: {error})") from error
    if array.shape != tensor.shape.numpy():  # nobody else looks at what a lazy tensor makes
        raise _damaged(tensor, f"does not fit its type and shape (it has the shape {array.shape})")
    return array


def _damaged(tensor: ir.TensorProtocol, problem: str) -> ModelError:
    what = f"'{tensor.name}'" if tensor.name else "a tensor without a name"
    return ModelError(f"what {what} holds {problem}", where="the given model", remedy=EXPORT_AGAIN)


def constant(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds, as a tensor; None for strings, sparse tensors and references, and for
    any other node.
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


def stored_as(value: ir.Value | None) -> ir.TensorProtocol | None:
    """What the model stores as this value; None when it is computed or given. Nothing is named by asking."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    return constant(node) if node is not None else None


_SCALARS = {
    ir.AttributeType.FLOAT: np.float32,
    ir.AttributeType.FLOATS: np.float32,
    ir.AttributeType.INT: np.int64,
    ir.AttributeType.INTS: np.int64,
}
