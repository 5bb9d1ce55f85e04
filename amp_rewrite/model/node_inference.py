"""Types and shapes of one node's outputs by onnx's inference, and small values by its reference evaluator.

onnx's shape inference of whole models gives up on a Reshape whose shape is computed. Node by node, with a
number for every dimension, values that are computed from shapes are known too, and so nearly every shape.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import defs

from amp_rewrite.onnx_types import schema as schemas
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.operators.catalogue import find, names
from amp_rewrite.operators.flops import matrix
from amp_rewrite.operators.record import Trait
from amp_rewrite.process import startup, worker, worker_process

# Conversions between shapes and onnx's TypeProto messages.

Shape = tuple[int, ...]
DimSize = int | None
"""The size of a dimension, None where unknown."""
SymbolSizes = Callable[[str | None], DimSize]
"""Size of a symbol, None where unknown."""


def tensor_proto(dtype: ir.DataType, dims: Iterable[DimSize] | None = None) -> onnx.TypeProto:
    """Return the type of a tensor; without `dims` its rank is unknown."""
    shape = None if dims is None else tuple(dims)
    return onnx.helper.make_tensor_type_proto(int(dtype), shape)


def proto_dims(proto: onnx.TypeProto | None) -> tuple[DimSize, ...] | None:
    """Return the dimensions of a tensor type; None where the rank is unknown, or the type is not a tensor."""
    if proto is None or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in proto.tensor_type.shape.dim)


def proto_shape(proto: onnx.TypeProto | None) -> Shape | None:
    """Return the shape of a type if every dimension is a known size, else None."""
    dims = proto_dims(proto)
    if dims is None or any(d is None or d < 0 for d in dims):
        return None
    return tuple(d for d in dims if d is not None)


def declared_proto(
    value: ir.Value, dtype: ir.TypeProtocol | None, sizes: SymbolSizes
) -> onnx.TypeProto | None:
    """Return the type that the model declares for a value, with the symbols replaced by their sizes."""
    kind = value.type or dtype
    if kind is None:
        return None
    if not isinstance(kind, (ir.TensorType, ir.SparseTensorType)):
        return ir.serde.serialize_type(kind)
    if value.shape is None:
        return tensor_proto(kind.dtype)
    return tensor_proto(kind.dtype, [d if isinstance(d, int) else sizes(d.value) for d in value.shape])


def refine_proto(proto: onnx.TypeProto | None, declared: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """Return the inferred type, with unknown dimensions taken from the declared one."""
    if proto is None:
        return declared
    inferred, stated = proto_dims(proto), proto_dims(declared)
    if declared is None or stated is None or not proto.HasField("tensor_type"):
        return proto
    if inferred is None:
        return declared
    if len(inferred) != len(stated):
        return proto
    both = (mine if mine is not None else other for mine, other in zip(inferred, stated, strict=True))
    return tensor_proto(ir.DataType(proto.tensor_type.elem_type), both)


# Output shapes of onnxruntime's contrib operators, which onnx's inference does not know.
#
# Only those that onnxruntime's optimisers and common exporters emit; the operators are described in
# onnxruntime's docs/ContribOperators.md.

InputShapes = Sequence[Shape | None]
"""The shapes of a node's inputs, None where unknown."""


def outputs(node: ir.Node, inputs: InputShapes) -> tuple[Shape | None, ...]:
    """Return the shape of every output of a contrib operator; None where unknown."""
    rule = _RULES.get(node.op_type) if node.domain in ("", CONTRIB) else None
    nothing = (None,) * len(node.outputs)
    if rule is None:
        return nothing
    try:
        output_shapes = rule(node, inputs)
    except (LookupError, TypeError, ValueError):  # fewer inputs or dimensions than the operator requires
        return nothing
    return (*output_shapes, *nothing)[: len(node.outputs)]


def _first(_: ir.Node, inputs: InputShapes) -> InputShapes:
    return [inputs[0]]


def _skip(_: ir.Node, inputs: InputShapes) -> InputShapes:
    """Skip...LayerNormalization: the output, two statistics, and the sum before normalisation."""
    x = inputs[0]
    return [x, None, None, x]


def _broadcast(*ports: int) -> Callable[[ir.Node, InputShapes], InputShapes]:
    def shapes(_: ir.Node, inputs: InputShapes) -> InputShapes:
        parts = [part for port in ports if (part := inputs[port]) is not None]
        return [np.broadcast_shapes(*parts) if len(parts) == len(ports) else None]

    return shapes


def _matmul(node: ir.Node, inputs: InputShapes) -> InputShapes:
    a, b = inputs[0], inputs[1]
    return [] if a is None or b is None else [matrix(a, b, functools.partial(schemas.integer, node))]


def _packed(node: ir.Node, inputs: InputShapes) -> InputShapes:
    """Products by block-quantised weights, whose width is the attribute N."""
    a = inputs[0]
    return [None if a is None else (*a[:-1], schemas.integer(node, "N"))]


def _attention(node: ir.Node, inputs: InputShapes) -> InputShapes:
    x, weights = inputs[0], inputs[1]
    if x is None or weights is None:
        return []
    sizes = node.attributes.get_ints("qkv_hidden_sizes")
    hidden = sizes[2] if sizes is not None else weights[1] // 3
    return [(x[0], x[1], hidden)]


def _heads(_: ir.Node, inputs: InputShapes) -> InputShapes:
    """MultiHeadAttention and related operators: as wide as the values, as long as the queries."""
    q, v = inputs[0], inputs[2] if len(inputs) > 2 else None
    if q is None:
        return []
    if len(q) == 5:  # query, key and value in one: batch, length, heads, 3, size
        return [(q[0], q[1], q[2] * q[4])]
    if v is not None and len(v) == 4:  # values by head: batch, heads, length, size
        return [(q[0], q[1], v[1] * v[3])]
    return [(q[0], q[1], v[-1] if v is not None else q[-1])]


def _grouped(node: ir.Node, inputs: InputShapes) -> InputShapes:
    q, key = inputs[0], inputs[1] if len(inputs) > 1 else None
    past, grown = inputs[3] if len(inputs) > 3 else None, None
    if q is None:
        return []
    heads, kv_heads = schemas.integer(node, "num_heads"), schemas.integer(node, "kv_num_heads")
    packed = key is None  # query, key and value in one tensor
    size = q[-1] // (heads + 2 * kv_heads) if packed else q[-1] // heads
    if past is not None:
        grown = (past[0], past[1], past[2] + q[1], past[3])
    return [(q[0], q[1], heads * size), grown, grown]


def _embedding(_: ir.Node, inputs: InputShapes) -> InputShapes:
    ids, words = inputs[0], inputs[2]
    embedded = None if ids is None or words is None else (*ids, words[1])
    return [embedded, None if ids is None else (ids[0],), embedded]


def _global_pool(node: ir.Node, inputs: InputShapes) -> InputShapes:
    x = inputs[0]
    if x is None:
        return []
    if schemas.integer(node, "channels_last"):
        return [(x[0], *(1,) * (len(x) - 2), x[-1])]
    return [(x[0], x[1], *(1,) * (len(x) - 2))]


def _concat(node: ir.Node, inputs: InputShapes) -> InputShapes:
    """QLinearConcat: scale and zero point of the output, then tensor, scale and zero point of each input."""
    parts = [part for part in inputs[2::3] if part is not None]
    if len(parts) != len(inputs[2::3]):
        return []
    axis = schemas.integer(node, "axis") % len(parts[0])
    total = sum(part[axis] for part in parts)
    return [(*parts[0][:axis], total, *parts[0][axis + 1 :])]


def _crop(node: ir.Node, inputs: InputShapes) -> InputShapes:
    """Crop, from Core ML: removes left, top, right and bottom borders of an image."""
    x, border = inputs[0], node.attributes.get("border")
    if x is None or border is None or "scale" in node.attributes:
        return []
    left, top, right, bottom = border.as_ints()
    return [(x[0], x[1], x[2] - top - bottom, x[3] - left - right)]


def _qgemm(node: ir.Node, inputs: InputShapes) -> InputShapes:
    """QGemm: A, its scale and zero point, then B."""
    a, b = inputs[0], inputs[3]
    if a is None or b is None:
        return []
    rows = a[1 if schemas.integer(node, "transA") else 0]
    return [(rows, b[0 if schemas.integer(node, "transB") else 1])]


LIKE_FIRST = names(lambda each: each.traits & Trait.LIKE_FIRST, CONTRIB)
"""Operators whose first output has the shape of the first input."""
SUMS = names(lambda each: each.norm and len(each.norm.data) > 1, CONTRIB)
"""Norms of a sum, which is their fourth output."""
MATMULS = """FusedMatMul FusedMatMulActivation TransposeMatMul DynamicQuantizeMatMul MatMulInteger16
MatMulIntegerToFloat""".split()
"""Contrib operators with the inputs and the output shape of a MatMul."""

_RULES: dict[str, Callable[[ir.Node, InputShapes], InputShapes]] = {
    **dict.fromkeys(LIKE_FIRST, _first),
    **dict.fromkeys(SUMS, _skip),
    "QLinearAdd": _broadcast(0, 3),
    "QLinearMul": _broadcast(0, 3),
    "QLinearWhere": _broadcast(0, 1, 4),
    "MulInteger": _broadcast(0, 2),
    **dict.fromkeys(MATMULS, _matmul),
    "MatMulNBits": _packed,
    "MatMulBnb4": _packed,
    "Attention": _attention,
    "QAttention": _attention,
    "MultiHeadAttention": _heads,
    "DecoderMaskedMultiHeadAttention": _heads,
    "GroupQueryAttention": _grouped,
    "EmbedLayerNormalization": _embedding,
    "QLinearGlobalAveragePool": _global_pool,
    "QLinearConcat": _concat,
    "QGemm": _qgemm,
    "Crop": _crop,
}


def standard(node: ir.Node) -> str:
    """Return the ONNX operator with the inputs and shapes of a contrib node; empty where there is none."""
    own = node.domain == CONTRIB and not schemas.integer(node, "channels_last")
    return find(node.domain, node.op_type).like if own else ""


Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class KnownValue:
    """The type of a node's input, and its contents where they are known."""

    type: onnx.TypeProto | None = None
    data: Array | None = None


_CACHED = 4096
"""Number of cached results: the layers of a network repeat the same requests."""

_Pairs = tuple[tuple[str, bytes], ...]
"""Serialised messages by name."""


@dataclass(frozen=True, slots=True)
class _InferenceRequest:
    """A node under one version of its schema, with the types of its inputs and the contents of small ones."""

    node: bytes
    domain: str
    version: int
    types: _Pairs
    data: _Pairs
    imports: tuple[tuple[str, int], ...]


@functools.lru_cache(maxsize=_CACHED)
def _infer(request: _InferenceRequest) -> Mapping[str, onnx.TypeProto]:
    """Return the types of the node's outputs by name; empty where onnx cannot infer them, or crashes."""
    reply = worker.call(
        worker_process.infer_node,
        request.node,
        request.domain,
        request.version,
        dict(request.types),
        dict(request.data),
        dict(request.imports),
    )
    return {name: onnx.TypeProto.FromString(kind) for name, kind in (reply or {}).items()}


def types(
    node: ir.Node, reads: Sequence[KnownValue | None], imports: Mapping[str, int], like: str = ""
) -> tuple[onnx.TypeProto | None, ...]:
    """Return the type of every output as onnx infers it; None where it cannot.

    `reads` has None for an omitted input. `like` names an ONNX operator to treat the node as. Where the
    schema of the model's opset infers no shape (opset 1 infers few, and negative axes are known only from
    opset 11 on), the newest schema of the operator is tried too, if the node is valid for it.
    """
    domain, operator = "" if like else node.domain, like or node.op_type
    declared = schemas.of_onnx(domain, operator, imports.get(domain, 1))
    kinds = _types(node, reads, imports, declared)
    if all(proto_dims(kind) is not None for kind in kinds):
        return kinds
    newest = schemas.of_onnx(domain, operator, 1 if domain else defs.onnx_opset_version())
    newer = _types(node, reads, imports, newest)
    return tuple(refine_proto(mine, other) for mine, other in zip(kinds, newer, strict=True))


def _types(
    node: ir.Node,
    reads: Sequence[KnownValue | None],
    imports: Mapping[str, int],
    schema: defs.OpSchema | None,
) -> tuple[onnx.TypeProto | None, ...]:
    nothing = (None,) * len(node.outputs)
    if schema is None:
        return nothing
    proto = _as_of(schema, node)
    input_names = frozenset(proto.input)
    known_inputs = {
        f"i{i}": value for i, value in enumerate(reads) if value is not None and f"i{i}" in input_names
    }
    if any(value.type is None for value in known_inputs.values()):
        return nothing
    types_by_name = _infer(_request(proto, schema, known_inputs, imports))
    return tuple(types_by_name.get(f"o{i}") for i in range(len(node.outputs)))


def _request(
    proto: onnx.NodeProto,
    schema: defs.OpSchema,
    known_inputs: Mapping[str, KnownValue],
    imports: Mapping[str, int],
) -> _InferenceRequest:
    kinds = ((name, value.type) for name, value in known_inputs.items())
    arrays = ((name, value.data) for name, value in known_inputs.items())
    tensors = ((name, onnx.numpy_helper.from_array(data)) for name, data in arrays if data is not None)
    return _InferenceRequest(
        proto.SerializeToString(deterministic=True),
        schema.domain,
        schema.since_version,
        tuple((name, kind.SerializeToString(deterministic=True)) for name, kind in kinds if kind is not None),
        tuple((name, tensor.SerializeToString()) for name, tensor in tensors),
        tuple(imports.items()),
    )


def values(
    node: ir.Node, reads: Sequence[KnownValue | None], imports: Mapping[str, int]
) -> tuple[Array | None, ...]:
    """Return the outputs of a node whose inputs are all known, by onnx's evaluator; None where that fails."""
    feeds = {f"i{i}": value.data for i, value in enumerate(reads) if value is not None}
    graph = onnx.helper.make_graph(
        [_generic_node(node)],
        "one",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds],
        [onnx.helper.make_value_info(f"o{i}", onnx.TypeProto()) for i in range(len(node.outputs))],
    )
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    reference = startup.import_module("onnx.reference")  # slow to import, and few models need it
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outputs = reference.ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # an operator version without a reference, or values that do not fit
        return (None,) * len(node.outputs)
    return tuple(
        np.asarray(array) if isinstance(array, (np.ndarray, np.generic)) else None for array in outputs
    )


def _generic_node(node: ir.Node) -> onnx.NodeProto:
    """Return the operator and attributes of a node with generic names: its inputs are i0, i1, ..., its
    outputs o0, o1, ...
    """
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
    for attribute in node.attributes.values():
        is_reference = attribute.is_ref()
        write = (
            ir.serde.serialize_reference_attribute_into if is_reference else ir.serde.serialize_attribute_into
        )
        write(proto.attribute.add(), from_=attribute)
    proto.input.extend(f"i{i}" if value is not None else "" for i, value in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return proto


def _as_of(schema: defs.OpSchema, node: ir.Node) -> onnx.NodeProto:
    """Return the node restricted to that schema: inputs and attributes that the schema lacks are omitted."""
    proto = _generic_node(node)
    proto.op_type, proto.domain = schema.name, schema.domain
    del proto.input[schema.max_input :]
    attributes = [attribute for attribute in proto.attribute if attribute.name in schema.attributes]
    del proto.attribute[:]
    proto.attribute.extend(attributes)
    return proto
