"""Integer-valued floats: lengths, positions and indices that float32 carries and half would round."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis import angles
from amp_rewrite.analysis.angles import TRIGONOMETRY
from amp_rewrite.analysis.derived import Derived
from amp_rewrite.analysis.operators import ARITHMETIC, MOVERS, PRODUCTS, effective_op
from amp_rewrite.analysis.units import UnitGraph, value_of
from amp_rewrite.model.constants import constant, numbers
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_BOUNDED = TRIGONOMETRY | frozenset("Tanh Sigmoid HardSigmoid Softmax Sign Erf".split())
_POSITIONS: Mapping[str, tuple[int, ...]] = {
    "CropAndResize": (1,),
    "GridSample": (1,),
    "MaxRoiPool": (1,),
    "NonMaxSuppression": (0,),
    "Resize": (1, 2),
    "RoiAlign": (1,),
}
"""Operators that read pixel coordinates, and the inputs: half cannot tell pixels beyond 2048 apart."""
_INTEGER_SIZES = {ir.DataType.BOOL: 1, ir.DataType.UINT8: 255, ir.DataType.INT8: 128}
_COUNTED = 2**24
"""Up to here float32 is exact for integers; beyond, every float32 is an integer, which says nothing."""


def check(graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> Mapping[int, Evidence]:
    """The units that carry integers that `half` cannot represent exactly, or that are cast to integers."""
    search = _Search(graph, fits, half)
    return {**search.forward(), **search.backward()}


class _Search:
    def __init__(self, graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> None:
        self._graph = graph
        self._fits = fits
        self._limit = half.integers
        self._derived = Derived(fits)

    def forward(self) -> Mapping[int, Evidence]:
        """The units that compute from large integers and constants alone, up to a bounded result."""
        evidence = self._evidence(Reason.FROM_INTEGER)
        carried: set[int] = set()
        found = dict.fromkeys(self._sources(), evidence)
        todo = list(found)
        while todo:
            unit = todo.pop()
            carried.add(unit)
            for consumer in self._graph.successors[unit]:
                if consumer not in found and self._integral(consumer, carried):
                    found[consumer] = evidence
                    if self._operator(consumer) not in _BOUNDED:
                        todo.append(consumer)
        return found

    def backward(self) -> Mapping[int, Evidence]:
        """The units whose result becomes an integer or a pixel coordinate through arithmetic alone."""
        casts = [unit for unit in self._of("Cast") if _casts_to_integer(self._graph.units[unit].node)]
        to_pixels = self._before(list(self._coordinates()), self._evidence(Reason.TO_PIXEL_COORDINATES))
        return {**to_pixels, **self._before(casts, self._evidence(Reason.TO_INTEGER))}

    def _evidence(self, reason: Reason) -> Evidence:
        return Evidence(Authority.RANGE, reason, limit=self._limit)

    def _coordinates(self) -> Iterator[int]:
        """The units that produce pixel coordinates."""
        for operator, ports in _POSITIONS.items():
            uses = (use for unit in self._of(operator) for use in self._graph.units[unit].uses)
            for value in (value_of(use) for use in uses if use.port in ports):
                producer = self._graph.producer.get(value) if value is not None else None
                if producer is not None and self._carries(producer):
                    yield producer

    def _before(self, todo: list[int], evidence: Evidence) -> dict[int, Evidence]:
        found: dict[int, Evidence] = {}
        while todo:
            unit = todo.pop()
            found[unit] = evidence
            producers = self._graph.predecessors[unit]
            todo += [producer for producer in producers if producer not in found and self._carries(producer)]
        return found

    def _carries(self, unit: int) -> bool:
        operator = self._operator(unit)
        return operator in MOVERS or operator in ARITHMETIC or operator == "Cast"

    def _operator(self, unit: int) -> str:
        return effective_op(self._graph.units[unit].node)

    def _of(self, *operators: str) -> Iterator[int]:
        """The units of these operators."""
        return itertools.chain(*(self._graph.by_operator.get(operator, ()) for operator in operators))

    def _sources(self) -> Iterator[int]:
        for unit in map(self._graph.units.__getitem__, self._of("Cast", "Range")):
            if unit.defs and self._large(unit.node):
                yield unit.index
        for value, fit in self._fits.items():
            counts = fit.whole and self._limit < fit.high <= _COUNTED
            if counts and not fit.exact and not fit.overflowing:
                yield from (consumer for consumer, _ in self._graph.uses.get(value, ()))

    def _large(self, node: ir.Node) -> bool:
        """Whether a Cast from an integer or a Range may exceed the integers that half represents exactly."""
        if node.op_type == "Cast":
            value = node.inputs[0]
            kind = self._graph.types.get(value) if value is not None else None
            integral = kind is not None and _is_integer(kind.dtype)
            return bool(integral) and _bound(value, self._graph.types) > self._limit
        return any(_bound(value, self._graph.types) > self._limit for value in node.inputs[:2])

    def _integral(self, unit: int, carried: set[int]) -> bool:
        """Whether all inputs of a unit are constant or carried; a product must also lead to an angle."""
        node = self._graph.units[unit].node
        if node.op_type in PRODUCTS and unit not in self._angles:
            return False
        return all(
            self._graph.producer.get(value) in carried or self._derived.has(value)
            for site in self._graph.units[unit].uses
            if (value := value_of(site)) is not None
        )

    @functools.cached_property
    def _angles(self) -> frozenset[int]:
        return angles.leading_to(self._graph)


def _is_integer(dtype: ir.DataType) -> bool:
    return dtype.is_integer() or dtype == ir.DataType.BOOL


def _casts_to_integer(node: ir.Node) -> bool:
    typed = schema.of(node)
    to = schema.declared(node, typed) if typed is not None else None
    return to is not None and to.is_integer()


def _bound(value: ir.Value | None, types: Mapping[ir.Value, ir.TypeProtocol], depth: int = 12) -> float:
    """An upper bound of the magnitude of an integer value, looking back `depth` nodes."""
    if value is None or depth == 0:
        return math.inf
    kind = types.get(value)
    size = _INTEGER_SIZES.get(kind.dtype) if kind is not None and kind.dtype else None
    if size is not None:
        return size
    node = value.producer()
    tensor = value.const_value
    if tensor is None and node is not None:
        tensor = constant(node)
    if tensor is not None:
        return float(np.abs(numbers(tensor)).max(initial=0)) if _is_number(tensor.dtype) else math.inf
    rule = _BOUNDS.get(node.op_type) if node is not None and node.domain == "" else None
    if rule is None or node is None or any(value is None for value in node.inputs):
        return math.inf
    return rule(node, [_bound(value, types, depth - 1) for value in node.inputs])


def _is_number(dtype: ir.DataType) -> bool:
    return dtype.is_integer() or dtype.is_floating_point()


def _longest(node: ir.Node, _bounds: list[float]) -> float:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    known = shape is not None and all(isinstance(dim, int) for dim in shape)
    return max((int(dim) for dim in shape or () if isinstance(dim, int)), default=0) if known else math.inf


_Rule = Callable[[ir.Node, list[float]], float]
_FIRST = (
    "Abs Cast Div Expand Flatten Gather GatherElements GatherND Identity Neg Reshape Slice Split Squeeze "
    "Tile Transpose Trilu Unsqueeze"
)
_BOUNDS: dict[str, _Rule] = {
    **dict.fromkeys(_FIRST.split(), lambda _, bounds: bounds[0]),
    **dict.fromkeys(("Concat", "Max", "Min"), lambda _, bounds: max(bounds)),
    **dict.fromkeys(("Add", "Sub"), lambda _, bounds: sum(bounds)),
    "Where": lambda _, bounds: max(bounds[1:]),
    "Mul": lambda _, bounds: math.prod(bounds),
    "Mod": lambda _, bounds: bounds[1],
    "Range": lambda _, bounds: max(bounds[:2]),
    "Shape": _longest,
}
"""The bound of the result of an operator, from the bounds of its inputs."""
