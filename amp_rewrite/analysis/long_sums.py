"""Products and sums of too many terms for the accumulator in half, on a target where that matters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import constants
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Options


def check(graph: UnitGraph, options: Options) -> Mapping[int, Evidence]:
    """Return the units that add up more terms than the target does accurately in half."""
    target, evidence = options.target, dict[int, Evidence]()
    if target.longest_sum is None:
        return evidence
    for operator in _TERMS:
        for unit in graph.by_operator.get(operator, ()):
            node = graph.units[unit].node
            count = terms(node, graph.shape)
            is_open = count is None and node.op_type in _REDUCTIONS and node.domain == ""
            if is_open or (count is not None and count > target.longest_sum):
                evidence[unit] = Evidence(
                    Authority.TARGET,
                    Reason.LONG_SUM,
                    subject=target.name,
                    number=count or 0,
                    limit=target.longest_sum,
                    half=options.half.name,
                    text="an open size" if count is None else f"its {count} terms",
                )
    return evidence


_ShapeOf = Callable[[ir.Value | None], ir.Shape | None]


def _declared(value: ir.Value | None) -> ir.Shape | None:
    return None if value is None else value.shape


def terms(node: ir.Node, shape_of: _ShapeOf = _declared) -> int | None:
    """Return the terms per element of a product or a sum, for these shapes; None where unknown."""
    rule = _TERMS.get(node.op_type) if node.domain == "" else None
    return None if rule is None else rule(_Summed(node, shape_of))


_Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Summed:
    """A node, and the shapes of its inputs."""

    node: ir.Node
    shape_of: _ShapeOf

    def dims(self, port: int) -> _Dims:
        """Return the sizes of an input, None for unknown ones; empty without a known rank."""
        shape = self.shape_of(self.node.inputs[port]) if port < len(self.node.inputs) else None
        return tuple(dim if isinstance(dim, int) else None for dim in shape or ())


def _product(dims: _Dims) -> int | None:
    static_dims = [dim for dim in dims if dim is not None]
    return math.prod(static_dims) if dims and len(static_dims) == len(dims) else None


def _matmul(summed: _Summed) -> int | None:
    left, right = summed.dims(0), summed.dims(1)
    return _product(left[-1:]) or _product(right[-2:-1] if len(right) > 1 else right)


def _gemm(summed: _Summed) -> int | None:
    left, right = summed.dims(0), summed.dims(1)
    mine = left[:1] if schema.integer(summed.node, "transA") else left[-1:]
    return _product(mine) or _product(right[-1:] if schema.integer(summed.node, "transB") else right[:1])


def _conv(summed: _Summed) -> int | None:
    return _product(summed.dims(1)[1:])


def _conv_transpose(summed: _Summed) -> int | None:
    """Return an upper bound: an element meets every stride-th element of the filter along each axis."""
    dims = summed.dims(1)
    channels, spots = _product(dims[:1]), dims[2:]
    strides = schema.integers(summed.node, "strides") or [1] * len(spots)
    taps = _product(tuple(dim and -(-dim // stride) for dim, stride in zip(spots, strides, strict=False)))
    group = schema.integer(summed.node, "group", 1)
    return None if channels is None or taps is None else channels // group * taps


def _reduced(summed: _Summed) -> int | None:
    dims, node = summed.dims(0), summed.node
    axes = list(schema.integers(node, "axes"))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        axes_tensor = constants.stored_as(node.inputs[1])
        if axes_tensor is None:
            return None
        axes = axes_tensor.numpy().tolist()
    if not axes and schema.integer(node, "noop_with_empty_axes"):
        return 1
    axes = axes or list(range(len(dims)))
    return _product(tuple(dims[axis] for axis in axes if -len(dims) <= axis < len(dims)))


_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "GlobalAveragePool")
"""Sums over an axis of any size: where it is unknown, there is no limit."""

_TERMS: Mapping[str, Callable[[_Summed], int | None]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "ReduceMean": _reduced,
    "ReduceSum": _reduced,
    "ReduceSumSquare": _reduced,
    "ReduceL2": _reduced,
    "GlobalAveragePool": lambda summed: _product(summed.dims(0)[2:]),
}
"""Number of terms of one element, by operator; None where it is unknown."""
