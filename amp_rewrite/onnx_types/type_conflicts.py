"""Values and nodes of a model that have two float types where ONNX wants one: no runtime loads such a model.

Converters leave them: a declaration of the type before, or a constant that was not converted with its reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name

_FLOATS = HALF_TYPES | {ir.DataType.FLOAT, ir.DataType.DOUBLE}


def find(model: ir.Model) -> str:
    """Returns the first conflict of a half type with another float type, in words; empty without one."""
    types = element_types.infer(model)
    return next(_of_declarations(types), "") or next(_of_nodes(model, types), "")


def _of_declarations(types: Types) -> Iterator[str]:
    for value, inferred in types.items():
        if found := _conflict((inferred, value.type)):
            yield f"'{value.name}' is {found[0]}, and declared {found[1]}"


def _of_nodes(model: ir.Model, types: Types) -> Iterator[str]:
    version = element_types.versions(model.graph.opset_imports)
    for node in model.graph.all_nodes():
        for values in _alike(node, version(node.domain)):
            kinds = (types.get(value, value.type) for value in values if value is not None)
            if found := _conflict(kinds):
                name = node.name or next((value.name for value in node.outputs if value.name), "")
                yield f"{node.op_type} '{name}' has {' and '.join(found)} where its schema has one type"


def _alike(node: ir.Node, version: int) -> Iterator[list[ir.Value | None]]:
    """The values at the ports of a node, and of its bodies, that have one type."""
    bindings = control_flow.bindings(node) if control_flow.may_have_bodies(node) else None
    for binding in bindings or ():
        if not binding.mapped:
            outer = [value for i in binding.inputs for value in node.inputs[i : i + 1]]
            inner = [body.inputs[i] for body, i in binding.enters]
            yield [*outer, *inner, *(body.outputs[i] for body, i in binding.leaves)]
    layout = schema.layout(node.domain, node.op_type, version, len(node.inputs), len(node.outputs))
    for group in layout or () if bindings is None else ():
        yield [node.inputs[i] for i in group.inputs]


def _conflict(kinds: Iterable[ir.TypeProtocol | None]) -> list[str]:
    """The names of the float types of tensors, where these are several and one is half; else none."""
    found = dict.fromkeys(kind.dtype for kind in kinds if isinstance(kind, ir.TensorType))
    is_one = len(found) < 2 or HALF_TYPES.isdisjoint(found) or not _FLOATS.issuperset(found)
    return [] if is_one else [element_type_name(dtype) for dtype in found]
