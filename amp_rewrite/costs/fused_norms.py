"""Which nodes of a norm that is written out onnxruntime runs as one kernel, as its own passes match them.

    d = x - mean(x)                                                   LayerNormalization, with a bias
    Pow(d, 2), ReduceMean, Add, Sqrt, Div, Mul by a weight            SimplifiedLayerNormalization

Both average over the last axis alone, and want a weight (and bias) of one axis. Casts before and within them
go as well. Source: layer_norm_fusion.cc in onnxruntime/core/optimizer; seen with onnxruntime-gpu 1.31.1.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.model.constants import stored_as
from amp_rewrite.onnx_types import attributes
from amp_rewrite.preparing import norms_and_clips


class FusedNorm(NamedTuple):
    """The nodes before the weight, and the bias behind it where that belongs to the kernel."""

    inner: tuple[ir.Node, ...]
    bias: ir.Node | None


def of(result: ir.Node, weight: ir.Node) -> FusedNorm | None:
    """The nodes that run as one with `weight`, which reads the `result` of a norm; None where none do."""
    found = _simplified(result) if patterns.is_default(weight, "Mul") else None
    if found is None or not _is_vector(patterns.other(weight, result.outputs[0])):
        return None
    *_, mean, square = found
    bias, centring = _bias(weight), _centring(square.inputs[0], _axes(mean))
    if bias is None or not centring:
        return FusedNorm(found, None)
    return FusedNorm((*found, *centring), bias)


def _simplified(result: ir.Node) -> tuple[ir.Node, ...] | None:
    """The nodes from the quotient back to the square of data that it divides."""
    quotient = _quotient(result)
    mean = norms_and_clips.mean_under_root(quotient.root) if quotient is not None else None
    square = patterns.maker(mean.inputs[0], "Pow") if mean is not None else None
    if quotient is None or mean is None or square is None or not _averages_last(mean):
        return None
    shifted = norms_and_clips.producer_of(quotient.root.inputs[0], "Add")
    if shifted is None or not _is_same(square.inputs[0], quotient.dividend):
        return None
    return (*quotient.nodes, quotient.root, shifted, mean, square)


class _Quotient(NamedTuple):
    """The nodes that divide, the root by which they do, and what they divide."""

    nodes: tuple[ir.Node, ...]
    root: ir.Node
    dividend: ir.Value | None


def _quotient(result: ir.Node) -> _Quotient | None:
    """The quotient by a root that a node makes, at once or as a product with the inverse."""
    root = _divisor(result)
    if root is not None:
        return _Quotient((result,), root, result.inputs[0])
    for value in result.inputs if patterns.is_default(result, "Mul") else ():
        inverse = patterns.maker(value, "Div")
        root = _divisor(inverse) if inverse is not None else None
        if inverse is not None and root is not None and patterns.scalar(inverse.inputs[0]) == 1:
            return _Quotient((result, inverse), root, patterns.other(result, inverse.outputs[0]))
    return None


def _divisor(node: ir.Node) -> ir.Node | None:
    return patterns.maker(node.inputs[1], "Sqrt") if patterns.is_default(node, "Div") else None


def _centring(data: ir.Value | None, axes: tuple[int, ...]) -> tuple[ir.Node, ...]:
    """The nodes that take the mean along these axes from data; two Subs may do the same."""
    taken = patterns.maker(data, "Sub")
    mean = patterns.maker(taken.inputs[1], "ReduceMean") if taken is not None else None
    if taken is None or mean is None or _axes(mean) != axes or mean.inputs[0] is not taken.inputs[0]:
        return ()
    return (mean, *(node for node in patterns.readers(mean.outputs[0]) if patterns.is_default(node, "Sub")))


def _bias(weight: ir.Node) -> ir.Node | None:
    """The addition of a bias of one axis, where it alone reads what is weighted."""
    node = patterns.only_reader(weight.outputs[0])
    if node is None or not patterns.is_default(node, "Add"):
        return None
    return node if _is_vector(patterns.other(node, weight.outputs[0])) else None


def _is_same(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Whether both are one value, or the same difference made twice."""
    one, other = patterns.maker(first, "Sub"), patterns.maker(second, "Sub")
    return first is second or (one is not None and other is not None and one.inputs == other.inputs)


def _averages_last(mean: ir.Node) -> bool:
    axes, data = _axes(mean), mean.inputs[0]
    rank = len(data.shape) if data is not None and data.shape is not None else None
    return axes == (-1,) or (rank is not None and axes == (rank - 1,))


def _axes(mean: ir.Node) -> tuple[int, ...]:
    """The axes of a reduction; none where they are not known, or all of them."""
    if "axes" in mean.attributes:
        return tuple(attributes.integers(mean, "axes"))
    stored = stored_as(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return () if stored is None else tuple(map(int, stored.numpy().reshape(-1)))


def _is_vector(value: ir.Value | None) -> bool:
    """Whether a value has one axis."""
    stored = stored_as(value) if value is not None else None
    shape = stored.shape if stored is not None else value.shape if value is not None else None
    return shape is not None and len(shape) == 1
