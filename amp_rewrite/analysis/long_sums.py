"""Products and sums of so many terms that adding them up in half costs too much, on a target that does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import constants
from amp_rewrite.onnx_types import attributes
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Options


def check(graph: UnitGraph, options: Options) -> Mapping[int, Evidence]:
    """What stays float32 because it adds up more terms than the target does well in half."""
    target, found = options.target, dict[int, Evidence]()
    if target.longest_sum is None:
        return found
    for operator in _TERMS:
        for unit in graph.by_operator.get(operator, ()):
            count = terms(graph.units[unit].node)
            if count is not None and count > target.longest_sum:
                found[unit] = Evidence(
                    Authority.TARGET,
                    Reason.LONG_SUM,
                    subject=target.name,
                    number=count,
                    limit=target.longest_sum,
                    half=options.half.name,
                )
    return found


def terms(node: ir.Node) -> int | None:
    """How many terms make up one element of a product or a sum; None where that is not known."""
    rule = _TERMS.get(node.op_type) if node.domain == "" else None
    return None if rule is None else rule(node)


_Dims = tuple[int | None, ...]


def _dims(node: ir.Node, port: int) -> _Dims:
    """The sizes of an input, None for those that are not known; none without a known rank."""
    value = node.inputs[port] if port < len(node.inputs) else None
    shape = value.shape if value is not None else None
    return tuple(dim if isinstance(dim, int) else None for dim in shape or ())


def _product(dims: _Dims) -> int | None:
    known = [dim for dim in dims if dim is not None]
    return math.prod(known) if dims and len(known) == len(dims) else None


def _matmul(node: ir.Node) -> int | None:
    left, right = _dims(node, 0), _dims(node, 1)
    return _product(left[-1:]) or _product(right[-2:-1] if len(right) > 1 else right)


def _gemm(node: ir.Node) -> int | None:
    left, right = _dims(node, 0), _dims(node, 1)
    mine = left[:1] if attributes.integer(node, "transA") else left[-1:]
    return _product(mine) or _product(right[-1:] if attributes.integer(node, "transB") else right[:1])


def _conv(node: ir.Node) -> int | None:
    return _product(_dims(node, 1)[1:])


def _conv_transpose(node: ir.Node) -> int | None:
    """At most: an element of the result meets every stride-th element of the filter along each axis."""
    dims = _dims(node, 1)
    channels, spots = _product(dims[:1]), dims[2:]
    strides = attributes.integers(node, "strides") or [1] * len(spots)
    met = _product(tuple(dim and -(-dim // stride) for dim, stride in zip(spots, strides, strict=False)))
    group = attributes.integer(node, "group", 1)
    return None if channels is None or met is None else channels // group * met


def _reduced(node: ir.Node) -> int | None:
    dims = _dims(node, 0)
    if "axes" in node.attributes:
        axes = list(attributes.integers(node, "axes"))
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        stored = constants.stored_as(node.inputs[1])
        axes = [] if stored is None else stored.numpy().tolist()
    else:
        axes = [] if attributes.integer(node, "noop_with_empty_axes") else list(range(len(dims)))
    return _product(tuple(dims[axis] for axis in axes if -len(dims) <= axis < len(dims)))


_TERMS: Mapping[str, Callable[[ir.Node], int | None]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "ReduceMean": _reduced,
    "ReduceSum": _reduced,
    "ReduceSumSquare": _reduced,
    "ReduceL2": _reduced,
    "GlobalAveragePool": lambda node: _product(_dims(node, 0)[2:]),
}
"""By operator, how many terms make up one element; None where that is not known."""
