"""Advice on Tensor Cores for a whole model: their presence on the device, dimensions that are no multiples of
8, and open dimensions.

Since cuBLAS 11.0 and cuDNN 7.6.3 Tensor Cores are used for all sizes; they are most efficient where the
dimensions of a product in float16 or bfloat16 are multiples of 8, that is, of 16 bytes (NVIDIA, Matrix
Multiplication Background User's Guide, "Tensor Core Requirements"; Convolutional Layers User's Guide;
Recurrent Layers User's Guide). Keras logs the first check for `mixed_float16`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import Precision, some
from amp_rewrite.explaining.sentences import share
from amp_rewrite.model import concrete_shapes
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_facts.operators import RECURRENT
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.policy.devices import Device
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.text import plural

STEP = 8
"""Dimensions are best in multiples of this many elements of two bytes: 16 bytes (see above)."""

_PROBE = 97
"""The size of open dimensions in a second shape inference: a dimension that changes with it is unknown. A
prime, so that sizes computed from it differ from those computed from a size of 1.
"""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of a product, its size, and the next multiple of 8."""

    name: str
    size: int
    padded: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Products of one operator with the same dimensions to pad.

    `nodes` are the names of the nodes. `flop_share` is their share of the model's FLOPs, from 0 to 1, None
    where the model's FLOPs are unknown.
    """

    operator: str
    nodes: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    flop_share: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on a model, none of which is carried out.

    `half` is the half type, `device` the name of the target device. `shortfall` says why the device gains no
    speed from half; empty where it does. `paddings` are the products that padding would speed up, those with
    most FLOPs first; `open_dims` names the dimensions that were not examined because they are open.
    """

    half: str
    device: str
    shortfall: str
    paddings: tuple[Padding, ...]
    open_dims: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the advice as plain data."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield the reason why the device gains no speed; else the products that padding would speed up."""
        if self.shortfall:
            yield self.shortfall
            return
        for padding in self.paddings:
            part = "" if padding.flop_share is None else f", {share(padding.flop_share)} of FLOPs"
            more = len(padding.nodes) - 1
            others = f" and {more:,} more" if more else ""
            sizes = ", ".join(f"{each.name} {each.size:,} -> {each.padded:,}" for each in padding.dimensions)
            nodes = plural(len(padding.nodes), "node")
            yield f"{nodes}{part}: {padding.operator} '{padding.nodes[0]}'{others}: {sizes}"
        if self.paddings:
            yield "Tensor Cores are fastest with multiples of 8: pad these dimensions where the model is made"
        else:
            yield f"all known dimensions of products in {self.half} are multiples of 8"
        if self.open_dims:
            names = some(self.open_dims)
            yield f"open dimensions were not examined ({names}); --dim NAME=SIZE sets them"

    def hints(self) -> Iterator[str]:
        """Yield the same in short, for a precision policy: the device, the dimensions, the open dimensions.

        In a train step the batch is among them: it is the inner dimension of the products that give
        gradients.
        """
        yield self.shortfall or f"{self.device} has Tensor Cores for {self.half}"
        if self.paddings:
            dimensions = [dimension for padding in self.paddings for dimension in padding.dimensions]
            sizes = list(dict.fromkeys(f"{each.size:,} -> {each.padded:,}" for each in dimensions))
            count = sum(len(padding.nodes) for padding in self.paddings)
            examples = ", ".join([*sizes[:_SHOWN], *(["..."] if len(sizes) > _SHOWN else [])])
            yield f"{plural(count, 'product')} with dimensions that are no multiples of 8: {examples}"
        if self.open_dims:
            yield f"open dimensions ({some(self.open_dims)}), the batch as well, are best as multiples of 8"


def advise(flop_count: FlopCount, decisions: Decisions, half: str, device: Device) -> Advice:
    """Return advice on the nodes of a model that run in half, or will after the decisions are applied.

    No padding is advised for a device that gains no speed from half.
    """
    nodes = decisions.half_nodes
    lacks = f"{device.name} has no Tensor Cores for {half}"
    gains = "products gain no speed from it, but use less memory"
    shortfall = "" if device.is_fast(half) else f"{lacks}: {gains}"
    return Advice(
        half=half,
        device=device.name,
        shortfall=shortfall,
        paddings=() if shortfall else _find_paddings(flop_count, nodes.union(_half_nodes(flop_count))),
        open_dims=flop_count.shapes.assumed,
    )


def _half_nodes(flop_count: FlopCount) -> Iterator[ir.Node]:
    layouts = element_types.Layouts(flop_count.model)
    for node in every_node(flop_count.model.graph):
        precision = counts.of_node(node, flop_count.types, layouts)
        if precision in (Precision.HALF, Precision.MIXED):
            yield node


def _find_paddings(flop_count: FlopCount, half: Container[ir.Node]) -> tuple[Padding, ...]:
    shape_of = _shapes_without_open_sizes(flop_count)
    alike: dict[tuple[str, tuple[Dimension, ...]], list[ir.Node]] = {}
    for node in every_node(flop_count.model.graph):
        if node in half and (dimensions := _dimensions_to_pad(node, shape_of)):
            alike.setdefault((schema.written(node.domain, node.op_type), dimensions), []).append(node)
    paddings = []
    for (operator, dimensions), nodes in alike.items():
        flops = sum(flop_count.flops.get(node) or 0 for node in nodes)
        part = flops / flop_count.total if flop_count.total else None
        paddings.append(Padding(operator, tuple(map(pinned_as, nodes)), dimensions, part))
    return tuple(sorted(paddings, key=lambda padding: (-(padding.flop_share or 0), -len(padding.nodes))))


_Size = int | None
_ShapeOf = Callable[[ir.Value | None], tuple[_Size, ...] | None]


def _shapes_without_open_sizes(flop_count: FlopCount) -> _ShapeOf:
    """Return shapes with None for dimensions that depend on an open one, that is, change with its size."""
    inferred = flop_count.shapes
    if not inferred.assumed:
        return inferred.of
    dims = {**flop_count.dims, **dict.fromkeys(inferred.assumed, _PROBE)}
    probed = concrete_shapes.infer(flop_count.model, flop_count.types, dims)

    def shape_of(value: ir.Value | None) -> tuple[_Size, ...] | None:
        one, other = inferred.of(value), probed.of(value)
        if one is None or other is None or len(one) != len(other):
            return None
        return tuple(a if a == b else None for a, b in zip(one, other, strict=True))

    return shape_of


def _dimensions_to_pad(node: ir.Node, shape_of: _ShapeOf) -> tuple[Dimension, ...]:
    """Return the dimensions of a product that are no multiples of 8.

    A size of 1 needs no padding: products with vectors, and depthwise convolutions, do not use Tensor Cores.
    """
    dimensions_of = _PRODUCTS.get((node.domain, node.op_type))
    if dimensions_of is None:
        return ()
    sizes = dimensions_of(node, [shape_of(value) or () for value in node.inputs])
    return tuple(
        Dimension(name, size, -(-size // STEP) * STEP)
        for name, size in sizes.items()
        if size is not None and size > 1 and size % STEP
    )


_Sizes = dict[str, _Size]
_Operands = list[tuple[_Size, ...]]


def _matrix_sizes(node: ir.Node, operands: _Operands) -> _Sizes:
    """Return M, K and N of a product M x K times K x N; one with a vector does not use Tensor Cores."""
    a, b = operands[:2]
    batched = schema.integer(node, "transBatchA") or schema.integer(node, "transBatchB")
    if batched or len(a) == 1 or len(b) == 1:
        return {}
    rows, inner = (a[-1], a[-2]) if schema.integer(node, "transA") else a[-2:] or (None, None)
    column_axis = -2 if schema.integer(node, "transB") else -1
    return {"rows": rows, "inner dimension": inner, "columns": b[column_axis] if b else None}


def _block_quantised_sizes(node: ir.Node, operands: _Operands) -> _Sizes:
    """Return the sizes from the attributes K and N, the dimensions of the stored matrix."""
    inner, columns = schema.integer(node, "K"), schema.integer(node, "N")
    rows = operands[0][-2] if len(operands[0]) > 1 else None
    return {"rows": rows, "inner dimension": inner, "columns": columns}


def _convolution_sizes(node: ir.Node, operands: _Operands) -> _Sizes:
    """Return the sizes of a group: W is M x C/group x kernel, of a transposed one C x M/group x kernel."""
    first, second = operands[1][:2] or (None, None)
    grouped = None if first is None else first // max(schema.integer(node, "group", 1), 1)
    if grouped == second == 1:
        return {}
    names = "input channels", "output channels"
    sizes = (grouped, second) if node.op_type == "ConvTranspose" else (second, grouped)
    return dict(zip(names, sizes, strict=True))


def _recurrent_sizes(node: ir.Node, operands: _Operands) -> _Sizes:
    """Return the sizes: W is directions x gates * hidden x input, R has hidden for input, X batch second."""
    x, w, r = (operand or (None, None, None) for operand in operands[:3])
    hidden = schema.integer(node, "hidden_size") or r[-1]
    return {"hidden size": hidden, "input size": w[-1], "batch": x[1 - schema.integer(node, "layout")]}


def _head_size(node: ir.Node, operands: _Operands) -> _Sizes:
    """Attention on queries split by head (4D, or 5D packed with keys and values) or with all heads (3D).

    com.microsoft's Attention has weights, input x (Q, K and V with all heads), and GroupQueryAttention
    without keys has query, key and value in one input.
    """
    heads = schema.integer(node, "num_heads") or schema.integer(node, "q_num_heads", 1)
    query = operands[0]
    if (node.domain, node.op_type) == (CONTRIB, "Attention"):
        query, heads = operands[1], 3 * heads
    elif node.op_type == "GroupQueryAttention" and not (len(node.inputs) > 1 and node.inputs[1]):
        heads += 2 * schema.integer(node, "kv_num_heads")
    width = query[-1] if query else None
    if width is None or len(query) > 3:
        return {"head size": width}
    return {"head size": width // max(heads, 1)}


_MATRIX_PRODUCTS = "FusedMatMul FusedMatMulActivation TransposeMatMul FusedGemm GemmFastGelu".split()
_ATTENTION = "Attention MultiHeadAttention DecoderMaskedMultiHeadAttention GroupQueryAttention".split()
_PRODUCTS: dict[tuple[str, str], Callable[[ir.Node, _Operands], _Sizes]] = {
    **{("", name): _matrix_sizes for name in ("MatMul", "Gemm")},
    **{("", name): _convolution_sizes for name in ("Conv", "ConvTranspose")},
    **{("", name): _recurrent_sizes for name in RECURRENT},
    ("", "Attention"): _head_size,
    **{(CONTRIB, name): _matrix_sizes for name in _MATRIX_PRODUCTS},
    **{(CONTRIB, name): _block_quantised_sizes for name in ("MatMulNBits", "MatMulBnb4")},
    **{(CONTRIB, name): _convolution_sizes for name in ("FusedConv", "NhwcConv", "NhwcFusedConv")},
    **{(CONTRIB, name): _head_size for name in _ATTENTION},
}
"""The sizes relevant to Tensor Cores, by operator; None where one is open or unknown."""
