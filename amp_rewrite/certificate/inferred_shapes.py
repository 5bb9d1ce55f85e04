"""The shapes of values as onnx infers them, whatever a model declares of what its nodes make."""

from __future__ import annotations

from collections.abc import Container

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, shape_inference

from amp_rewrite.certificate import attributes

_SMALL = 1 << 10
"""The bytes of a stored value up to which its elements may be sizes."""


def of(model: ModelProto, unknown: Container[str] | None = None) -> GraphProto:
    """The graph of a model, with the shapes that follow from its inputs, and from what it declares of values that
    are not `unknown`; by default all are. Only inputs where onnx fails.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    _forget(bare.graph, unknown)
    domains = {node.domain for node in bare.graph.node} - {entry.domain for entry in bare.opset_import}
    bare.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains if domain)
    try:
        return shape_inference.infer_shapes(bare, data_prop=True).graph
    except Exception:  # of many kinds
        return GraphProto(input=model.graph.input) if unknown is None else of(model)


def _forget(graph: GraphProto, unknown: Container[str] | None) -> None:
    """Takes from a graph what it declares of its values, but for inputs, and the elements of large ones."""
    waiting = [graph]
    while waiting:
        held = waiting.pop()
        known = [] if unknown is None else [info for info in held.value_info if info.name not in unknown]
        del held.value_info[:]
        held.value_info.extend(known)
        for info in held.output if held is graph else (*held.input, *held.output):
            if unknown is None or info.name in unknown:
                info.type.tensor_type.ClearField("shape")
        for tensor in held.initializer:
            _empty(tensor)
        for node in filter(_drops_axis, held.node):
            node.domain = _UNKNOWN
        for attribute in (each for node in held.node for each in node.attribute):
            waiting.extend(attributes.graphs(attribute))
            if attribute.type == AttributeProto.TENSOR:
                _empty(attribute.t)


_UNKNOWN = "unknown"
"""A domain of whose operators onnx infers nothing."""


def _drops_axis(node: NodeProto) -> bool:
    """Whether onnx may give parts an axis that onnxruntime drops: it ignores `keepdims` beside a split."""
    splits = node.op_type == "SplitToSequence" and len(node.input) > 1
    return splits and any(each.name == "keepdims" and not each.i for each in node.attribute)


def _empty(tensor: TensorProto) -> None:
    if tensor.ByteSize() > _SMALL:
        for field in ("raw_data", "float_data"):
            tensor.ClearField(field)
