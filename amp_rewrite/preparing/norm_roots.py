"""The root in a norm that is written out, and what stands beside it: Sqrt(ReduceMean(...) + epsilon)."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as


def mean_of(root: ir.Node) -> ir.Node | None:
    """The ReduceMean of float32 of which a node takes the root, with an epsilon; None for any other node."""
    shifted = maker(root.inputs[0], "Add") if is_plain(root, "Sqrt") else None
    if shifted is None or not any(map(_is_epsilon, shifted.inputs)):
        return None
    means = [maker(value, "ReduceMean") for value in shifted.inputs]
    return next((mean for mean in means if mean is not None), None)


def is_plain(node: ir.Node, operator: str) -> bool:
    """Whether a node is this operator of ONNX's."""
    return node.op_type == operator and not node.domain


def maker(value: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that makes a value, if it is this operator."""
    node = value.producer() if value is not None else None
    return node if node is not None and is_plain(node, operator) else None


def only_reader(value: ir.Value) -> ir.Node | None:
    """The node that alone reads a value, at one port or several; None where there are others, or an output is
    that value.
    """
    readers = value.consumers()
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def number(value: ir.Value | None) -> float | None:
    """A stored float32 number; None for any other value."""
    tensor = stored_as(value)
    is_number = tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == 1
    return float(tensor.numpy().item()) if tensor is not None and is_number else None


def _is_epsilon(value: ir.Value | None) -> bool:
    """It also tells the type: both operands of an Add have one."""
    return number(value) is not None
