"""ONNX nodes with the same output shapes as operators that onnx cannot infer: onnxruntime's own ones, and
operators of ONNX that it infers wrongly.

The equivalents keep open dimensions and their names. Values behind an operator that is missing here have no
shape. onnxruntime's docs/ContribOperators.md describes the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.onnx_types.schema import CONTRIB
from amp_rewrite.operators import catalogue
from amp_rewrite.operators.catalogue import names
from amp_rewrite.operators.record import Trait

Naming = Callable[[ir.Value], str]
Nodes = Iterator[onnx.NodeProto]


def equivalent_nodes(node: ir.Node, name: Naming, types: Types) -> list[onnx.NodeProto]:
    """Return nodes with the same output shapes and types as a node; none if no equivalent is known."""
    record = catalogue.find(node.domain, node.op_type)
    rule = _EQUIVALENTS.get(node.op_type) if node.domain in ("", CONTRIB) else None
    rule = _same(record.like) if record.like else rule
    prefix = next((name(value) for value in node.outputs if value.name), "")
    if rule is None or not prefix or schema.integer(node, "channels_last"):
        return []
    call = _ContribCall(
        node, [name(value) if value is not None else "" for value in node.inputs], f"{prefix}//"
    )
    equivalents = [*rule(call)]
    outputs = {output for each in equivalents for output in each.output}
    for port, value in enumerate(node.outputs):
        if value.name and call.like(port) in outputs:
            kind, first = types.get(value), node.inputs[0]
            is_same = kind is None or (rule is _first and first is not None and types.get(first) == kind)
            to: dict[str, Any] = {} if kind is None or is_same else {"to": int(kind.dtype)}
            operator = "Cast" if to else "Identity"  # a Cast of the first opsets names its type in words
            equivalents.append(helper.make_node(operator, [call.like(port)], [name(value)], **to))
    return equivalents


class _ContribCall:
    """A call of an operator: the names of its inputs, and of what has the shapes of its outputs."""

    def __init__(self, node: ir.Node, inputs: Sequence[str], prefix: str) -> None:
        self.node, self.inputs, self._prefix = node, inputs, prefix

    def __getitem__(self, port: int) -> str:
        """Return the name of an input, empty where the node has none."""
        return self.inputs[port] if port < len(self.inputs) else ""

    def has(self, *ports: int) -> bool:
        """Return whether the node has these inputs."""
        return all(self[port] for port in ports)

    def rank(self, port: int) -> int | None:
        """Return the declared number of axes of an input."""
        value = self.node.inputs[port] if self.has(port) else None
        return None if value is None or value.shape is None else len(value.shape)

    def like(self, port: int = 0) -> str:
        """Return the name of what has the shape of an output."""
        return f"{self._prefix}{port}"

    def make(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> onnx.NodeProto:
        """Return a node whose output has the shape of the first output, unless it goes `to` another name."""
        return helper.make_node(operator, inputs, [to or self.like()], **attributes)

    def numbers(self, to: str, *numbers: int) -> onnx.NodeProto:
        """Return a Constant of integers."""
        return self.make("Constant", to=to, value=numpy_helper.from_array(np.array(numbers, np.int64)))

    def integer(self, name: str) -> int:
        """Return an attribute, 0 without it."""
        return schema.integer(self.node, name)


def _first(call: _ContribCall) -> Nodes:
    if call.has(0):
        yield call.make("Identity", call[0])


def _skip(call: _ContribCall) -> Nodes:
    """Yield the shape of the output, and of the sum before normalisation."""
    if call.has(0):
        yield call.make("Identity", call[0])
        yield call.make("Identity", call[0], to=call.like(3))


def _same(operator: str, *ports: int) -> Callable[[_ContribCall], Nodes]:
    """Return a rule: the shapes are those of an operator of ONNX with the attributes and some of the inputs,
    all that it has for none.
    """

    def nodes(call: _ContribCall) -> Nodes:
        standard = schema.of_onnx("", operator, onnx.defs.onnx_opset_version())
        if standard is not None and call.has(*ports):
            node = call.make(operator, *([call[port] for port in ports] or call.inputs[: standard.max_input]))
            node.output.extend(call.like(port) for port in range(1, len(call.node.outputs)))
            for name, attribute in call.node.attributes.items():
                if name in standard.attributes and not attribute.is_ref():
                    node.attribute.append(ir.serde.serialize_attribute(attribute))
            yield node

    return nodes


def _embedding(call: _ContribCall) -> Nodes:
    """Yield a Gather of rows of the word embedding, one for each identifier."""
    if call.has(0, 2):
        yield call.make("Gather", call[2], call[0])
        yield call.make("Identity", call.like(), to=call.like(2))


def _product(call: _ContribCall) -> Nodes:
    if not call.has(0, 1):
        return
    if not any(call.integer(f"trans{what}") for what in ("A", "B", "BatchA", "BatchB")):
        yield call.make("MatMul", call[0], call[1])
        return
    sides = []
    for side, axes in zip("AB", ("ij", "jk"), strict=True):
        rows, columns = reversed(axes) if call.integer(f"trans{side}") else axes
        sides.append(f"{rows}...{columns}" if call.integer(f"transBatch{side}") else f"...{rows}{columns}")
    yield call.make("Einsum", call[0], call[1], equation=f"{sides[0]},{sides[1]}->...ik")


def _packed(call: _ContribCall) -> Nodes:
    """Yield the product by weights that are quantised in blocks."""
    if call.has(0):
        size, weights = call.like(-1), call.like(-2)
        yield call.numbers(size, call.integer("K"), call.integer("N"))
        yield call.make("ConstantOfShape", size, to=weights)
        yield call.make("MatMul", call[0], weights)


def _attention(call: _ContribCall) -> Nodes:
    """Yield the product with a slice of the weights, which concatenate those of queries, keys and values."""
    weights = call.node.inputs[1] if call.has(0, 1) else None
    constant = weights.const_value if weights is not None else None
    if constant is None or len(constant.shape) != 2:
        return
    sizes = call.node.attributes.get("qkv_hidden_sizes")
    is_given = sizes is not None and sizes.type == ir.AttributeType.INTS and sizes.value
    width = sizes.as_ints()[-1] if sizes is not None and is_given else constant.shape.numpy()[1] // 3
    bounds = [f"{call.like(-1)}.{at}" for at in range(3)]
    for bound, number in zip(bounds, (0, width, 1), strict=True):  # from, to, along which axis
        yield call.numbers(bound, number)
    yield call.make("Slice", call[1], *bounds, to=call.like(-1))
    yield call.make("MatMul", call[0], call.like(-1))


def _heads(call: _ContribCall) -> Nodes:
    """Yield what is as long as the queries and as wide as the values."""
    if call.rank(0) == 5:  # query, key and value in one: batch, length, heads, 3, size
        yield call.make("Einsum", call[0], to=call.like(-1), equation="abcde->abce")
        yield from _joined(call, call.like(-1), call.like())
    elif call.rank(2) == 4:  # values by head: batch, heads, length, size
        yield call.make("Transpose", call[2], to=call.like(-1), perm=[0, 2, 1, 3])
        yield from _joined(call, call.like(-1), call.like(-2))
        yield call.make("Einsum", call[0], call.like(-2), equation="abc,ade->abe")
    elif call.has(0, 2):
        yield call.make("Einsum", call[0], call[2], equation="abc,ade->abe")
    else:
        yield from _first(call)


def _joined(call: _ContribCall, value: str, to: str) -> Nodes:
    """Yield the Reshape that joins the last two axes of four."""
    yield call.numbers(f"{to}.shape", 0, 0, -1)
    yield call.make("Reshape", value, f"{to}.shape", to=to)


def _grouped(call: _ContribCall) -> Nodes:
    """Yield the shape of the queries, and of the past keys and values with the new ones."""
    if not call.has(0):
        return
    if call.has(1):
        yield from _first(call)
    else:  # query, key and value in one
        heads, all_heads = (
            call.integer("num_heads"),
            call.integer("num_heads") + 2 * call.integer("kv_num_heads"),
        )
        split, parts = call.like(-1), [call.like(-2), call.like(-3)]
        yield call.numbers(f"{split}.shape", 0, 0, all_heads, -1)
        yield call.make("Reshape", call[0], f"{split}.shape", to=split)
        for at, number in enumerate((0, heads, 2)):
            yield call.numbers(f"{split}.{at}", number)
        yield call.make("Slice", split, *(f"{split}.{at}" for at in range(3)), to=parts[0])
        yield from _joined(call, parts[0], call.like())
    for port in (1, 2) if call.has(3) else ():
        yield call.make("Einsum", call[3], call[0], to=f"{call.like(port)}.new", equation="abcd,aef->abed")
        yield call.make("Concat", call[3], f"{call.like(port)}.new", to=call.like(port), axis=2)


def _concat(call: _ContribCall) -> Nodes:
    """Yield a Concat of the inputs, each of which has a scale and a zero point, as the output has."""
    yield call.make("Concat", *call.inputs[2::3], axis=call.integer("axis"))


def _crop(call: _ContribCall) -> Nodes:
    """Yield a Slice of an image without its borders, in the form of old opsets."""
    border = call.node.attributes.get("border")
    if call.has(0) and border is not None and "scale" not in call.node.attributes:
        left, top, right, bottom = border.as_ints()
        ends = [-bottom or _FAR, -right or _FAR]
        yield call.make("Slice", call[0], axes=[2, 3], starts=[top, left], ends=ends)


_FAR = 1 << 31

_LIKE_FIRST = names(lambda each: each.traits & Trait.LIKE_FIRST, CONTRIB)
"""Operators whose first output has the shape of the first input."""
_SUMS = names(lambda each: each.norm and len(each.norm.data) > 1, CONTRIB)
"""Norms of a sum, which is their fourth output."""
_MATMULS = """FusedMatMul FusedMatMulActivation TransposeMatMul DynamicQuantizeMatMul MatMulInteger16
MatMulIntegerToFloat""".split()

_EQUIVALENTS: Mapping[str, Callable[[_ContribCall], Nodes]] = {
    **dict.fromkeys(_LIKE_FIRST, _first),
    **dict.fromkeys(_SUMS, _skip),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _same("Sum", 0, 3)),
    "QLinearWhere": _same("Sum", 0, 1, 4),
    "MulInteger": _same("Sum", 0, 2),
    **dict.fromkeys(_MATMULS, _product),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _packed),
    **dict.fromkeys(("Attention", "QAttention"), _attention),
    **dict.fromkeys(("MultiHeadAttention", "DecoderMaskedMultiHeadAttention"), _heads),
    "GroupQueryAttention": _grouped,
    "EmbedLayerNormalization": _embedding,
    "QLinearGlobalAveragePool": _same("GlobalAveragePool", 0),
    "QLinearConcat": _concat,
    "QGemm": _same("Gemm", 0, 3),
    "Crop": _crop,
}


def is_wrongly_inferred(node: ir.Node) -> bool:
    """Return whether onnx 1.23 infers shapes for a node that are wrong, or differ from the runtimes'."""
    rule = None if node.domain else _WRONG_RULES.get(node.op_type)
    return rule is not None and rule(node)


def _has_sides_of_its_own(node: ir.Node) -> bool:
    """Return whether it is an STFT for which onnx assumes two sides, or 0 for an open batch."""
    signal = node.inputs[0]
    dims = signal.shape if signal is not None else None
    return "onesided" not in node.attributes or not dims or not isinstance(dims[0], int)


def _drops_axis(node: ir.Node) -> bool:
    """Return whether it is a SplitToSequence with `split` and `keepdims = 0`.

    onnx ignores the attribute there, but onnxruntime does not if the parts have one size. PyTorch's exporter
    writes `unbind` this way.
    """
    keepdims = node.attributes.get("keepdims")
    return (
        len(node.inputs) > 1 and node.inputs[1] is not None and keepdims is not None and keepdims.value == 0
    )


_WRONG_RULES: Mapping[str, Callable[[ir.Node], bool]] = {
    "STFT": _has_sides_of_its_own,
    "SplitToSequence": _drops_axis,
}
