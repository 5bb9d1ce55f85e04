"""Sums of many terms, on a target that adds them up in half.

    ReduceMean(x), GlobalAveragePool(x)    over more than 64 terms, or an open size, for onnxruntime-webgpu

A sum in half has an error that grows with its terms; other targets add up in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import constants
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Options

_SUMS = having(Trait.SUMS)


def check(graph: UnitGraph, options: Options) -> Mapping[int, Evidence]:
    """Return the units of sums, means and pools over more terms than the target adds up in half, or over an
    open size.
    """
    target, evidence = options.target, dict[int, Evidence]()
    if target.longest_sum is None:
        return evidence
    for unit in graph.units_of(*sorted(_SUMS)):
        count = terms(unit.node, graph.shape)
        if count is None or count > target.longest_sum:
            evidence[unit.index] = Evidence(
                Authority.TARGET,
                Reason.LONG_SUM,
                subject=target.name,
                number=count or 0,
                limit=target.longest_sum,
                half=options.half.name,
                text="an open number of terms" if count is None else f"its {count} terms",
            )
    return evidence


_Shaped = Callable[[ir.Value | None], ir.Shape | None]


def _declared(value: ir.Value | None) -> ir.Shape | None:
    return None if value is None else value.shape


def terms(node: ir.Node, shape_of: _Shaped = _declared) -> int | None:
    """Return the terms of one element of a sum or a matrix product, for these shapes; None where unknown."""
    is_product = node.op_type in ("MatMul", "Gemm")
    if node.domain or not (is_product or node.op_type in _SUMS):
        return None
    sizes = [
        tuple(dim if isinstance(dim, int) else None for dim in shape_of(value) or ())
        for value in node.inputs[:2]
    ]
    if is_product:
        return next((size for size in _contracted(node, *sizes) if size is not None), None)
    if node.op_type in ("AveragePool", "LpPool"):
        return math.prod(schema.integers(node, "kernel_shape"))
    is_global = node.op_type in ("GlobalAveragePool", "GlobalLpPool")
    return _product(sizes[0][2:] if is_global else _along_axes(node, sizes[0]))


_Sizes = tuple[int | None, ...]


def _product(sizes: _Sizes) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if sizes and len(known) == len(sizes) else None


def _contracted(node: ir.Node, left: _Sizes, right: _Sizes) -> _Sizes:
    """Return the size that is summed up, as both operands of a matrix product give it."""
    first = left[-2:-1] if schema.integer(node, "transA") else left[-1:]
    is_last = len(right) == 1 or schema.integer(node, "transB")
    return (*first, *(right[-1:] if is_last else right[-2:-1]))


def _along_axes(node: ir.Node, sizes: _Sizes) -> _Sizes:
    """Return the sizes of the axes of a reduction or a running sum; none where they are unknown."""
    axes = list(schema.integers(node, "axes"))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        stored = constants.stored_as(node.inputs[1])
        if stored is None:
            return ()
        axes = stored.numpy().reshape(-1).tolist()
    if not axes and schema.integer(node, "noop_with_empty_axes"):
        return (1,)
    axes = axes or range(len(sizes))
    return tuple(sizes[axis] for axis in axes if -len(sizes) <= axis < len(sizes))
