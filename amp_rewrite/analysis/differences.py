"""Differences within the inputs of a model, as what a series has above its mean, or points from each other.

What is taken away is what they have in common, and half would round away what they have not: at 1000 it has
steps of 1/2. Up to the difference nothing else is computed, so that float32 costs few Casts, if any. A
product with a stored matrix may be a mean (I/n), or a difference (I - 1/n).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.from_inputs import FromInputs, read_by
from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_AVERAGES = frozenset(("AveragePool", "GlobalAveragePool", "ReduceMean"))
_CARRY = (MOVERS - {"If", "Loop", "Scan"}) | _AVERAGES | {"Cast"}
_LARGEST = 4096
"""The most rows or columns of a stored matrix that is looked at."""
_EXACT = 1e-4
"""How far sums of stored weights may be from 0 or 1."""


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that take inputs from each other, and those that move or average inputs for that."""
    if not any(graph.by_operator.get(name) for name in ("MatMul", "Sub")):
        return {}
    known = functools.cache(_sums)  # layers share a matrix
    carried = FromInputs(graph, stored, lambda unit: _carries(graph.units[unit].node, known))
    subtractions, products = (graph.by_operator.get(name, ()) for name in ("Sub", "MatMul"))
    ends = [unit for unit in subtractions if _is_difference(graph, unit, carried)]
    ends += [unit for unit in products if _takes_away(graph, unit, carried, known)]
    way = reach(ends, graph.predecessors.__getitem__, carried.units.__contains__)
    return dict.fromkeys((*ends, *way), Evidence(Authority.RANGE, Reason.DIFFERENCE))


class _Sums(NamedTuple):
    """What all weights sum up to that are multiplied for one number, 0 or 1, and the least of them."""

    total: int
    least: float


_Known = Callable[[ir.Value | None, int], _Sums | None]


def _carries(node: ir.Node, known: _Known) -> bool:
    """Whether a node moves or averages what it reads."""
    return effective_op(node) in _CARRY or any(
        each.total == 1 and each.least >= 0 for each in _of(node, known)
    )


def _is_difference(graph: UnitGraph, unit: int, carried: FromInputs) -> bool:
    """Whether a Sub, that no idiom has, takes from inputs what inputs have."""
    read = tuple(read_by(graph, unit))
    return unit not in graph.spelled and len(read) > 1 and all(map(carried.has, read))


def _takes_away(graph: UnitGraph, unit: int, carried: FromInputs, known: _Known) -> bool:
    """Whether a MatMul takes from inputs what these have in common."""
    is_carried = any(map(carried.has, read_by(graph, unit)))
    return is_carried and any(each.total == 0 for each in _of(graph.units[unit].node, known))


def _of(node: ir.Node, known: _Known) -> Iterator[_Sums]:
    """The sums of the weights that a MatMul multiplies by; none for another node, or other sums."""
    if patterns.is_default(node, "MatMul"):
        found = (known(node.inputs[port], port) for port in (1, 0))
        yield from (sums for sums in found if sums is not None)


def _sums(value: ir.Value | None, port: int) -> _Sums | None:
    """The sums of the weights that a model stores for an input of a MatMul; None where these are others."""
    tensor = stored_as(value)
    shape = dims(tensor) if tensor is not None else ()
    if tensor is None or len(shape) != 2 or not 0 < min(shape) <= max(shape) <= _LARGEST:
        return None
    weights = numbers(tensor) if port else numbers(tensor).T
    totals = (total for total in (0, 1) if _sum_to(weights[:, :1], total) and _sum_to(weights, total))
    total = next(totals, None)
    return None if total is None else _Sums(total, float(weights.min()))


def _sum_to(weights: NDArray[Any], total: int) -> bool:
    """Whether the weights of each column sum up to that, and are not all 0."""
    with np.errstate(invalid="ignore"):
        sums, scale = (part.sum(axis=0, dtype=np.float64) for part in (weights, np.abs(weights)))
        return bool(scale.all() and (np.abs(sums - total) <= _EXACT * scale).all())
