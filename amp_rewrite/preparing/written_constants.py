"""Constants that a change of form adds."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.unique_names import UniqueNames


def number(stored: float, beside: ir.Value, name: str, names: UniqueNames) -> ir.Node:
    """A Constant of one float32 number, named after the value that it helps to make."""
    node = ir.Node(
        "", "Constant", [], [ir.AttrTensor("value", ir.tensor(stored, ir.DataType.FLOAT))], name=""
    )
    node.outputs[0].name = names.of_value(beside, name)
    node.name = names.of_node(node.outputs[0].name)
    return node
