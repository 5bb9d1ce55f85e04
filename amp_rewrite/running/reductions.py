"""A float32 model whose outputs are the extremes of its float values, and counts of their elements.

Nodes behind each value reduce it within the run, so that no value is retained. The outputs are three vectors:
the largest elements of the values, the smallest, and sums. Those of a body leave it through new outputs of an
If, Loop or Scan: the other branch of an If yields neutral elements, and the vectors of all iterations are
reduced behind a Loop or Scan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.numerics.half import FLOAT16, HALF_TYPES
from amp_rewrite.onnx_types import control_flow, element_types
from amp_rewrite.operators.catalogue import SAME_ELEMENTS
from amp_rewrite.rewriting.instrument import Instrument, instrument

SINCE_COUNTS = 9
"""The first opset for element counts, that of Where."""

_SINCE_STATES = 9
"""The first opset where a Scan has no batch axis."""

"""Operators whose output has the elements of their first input."""


@dataclass(frozen=True, slots=True)
class ReducedRow:
    """The numbers of values with the same elements: the largest and the smallest element, and sums.

    If elements are counted, the sums are the counts of all elements, of those that float16 flushes to 0, of
    non-finite ones, and of finite ones that overflow float16; the extremes are of finite elements. Otherwise
    it is the sum of the elements, as ReduceMax and ReduceMin may skip elements next to a NaN.
    """

    names: list[str]
    is_counted: bool

    @property
    def width(self) -> int:
        """The number of its sums."""
        return 4 if self.is_counted else 1

    def extremes(self, high: float, low: float, sums: Sequence[float]) -> Extremes:
        """Return the extremes of one run; NOTHING if the value was not computed or is empty."""
        if not self.is_counted:
            return Extremes(low, high) if -math.inf < low <= high < math.inf else NOTHING
        size, flushed, not_finite, beyond = map(int, sums)
        total = max(size, flushed + not_finite + beyond)  # above 2^24 float32 rounds them
        return Extremes(low, high, int(size > 0), total, beyond, flushed, not_finite)

    def leaves_float16(self, high: float, low: float, sums: Sequence[float]) -> bool:
        """Return whether an uncounted value has elements outside the range of float16."""
        if self.is_counted:
            return False
        return math.isnan(sums[0]) or (low <= high and not max(-low, high) <= FLOAT16.largest)


def read_rows(
    rows: Sequence[ReducedRow], vectors: Iterable[Any]
) -> Iterator[tuple[ReducedRow, tuple[Any, Any, list[Any]]]]:
    """Yield each row with its numbers in the three vectors of a run."""
    highs, lows, sums = (vector.tolist() for vector in vectors)
    ends = itertools.accumulate(row.width for row in rows)
    for row, high, low, end in zip(rows, highs, lows, ends, strict=True):
        yield row, (high, low, sums[end - row.width : end])


def reduce_values(model: ir.Model, is_counted: Callable[[str], bool]) -> Sequence[ReducedRow]:
    """Replace the outputs of a model by the three vectors of the float32 and half values that it computes or
    is given, as far as they have a type.

    Returns their rows; a model without such values has none, and stays as it is.
    """
    with instrument(model, {}) as points:
        vectors = _Reducer(points, is_counted).reduce(model.graph)
    if vectors is None:
        return ()
    model.graph.outputs.clear()
    model.graph.outputs.extend(vectors.values)
    return vectors.rows


class _Way(NamedTuple):
    """How numbers of a vector are joined: the reduction, the first opset where its axes are an input, and the
    number that changes nothing.
    """

    operator: str
    since_input: int
    neutral: float


_WAYS = (_Way("ReduceMax", 18, -math.inf), _Way("ReduceMin", 18, math.inf), _Way("ReduceSum", 13, 0.0))
_LIMITS = (
    math.inf,
    -math.inf,
    0.0,
    FLOAT16.smallest / 2,  # the largest magnitude that float16 rounds to 0
    FLOAT16.largest,
)


@dataclass(frozen=True, slots=True)
class _Vectors:
    """The three vectors of a graph, and their rows."""

    values: Sequence[ir.Value]
    rows: Sequence[ReducedRow]


class _Parts:
    """What the vectors of a graph are joined of, and the rows of its values."""

    def __init__(self) -> None:
        self.rows: list[ReducedRow] = []
        self.numbers: tuple[list[ir.Value], ...] = ([], [], [])
        self.row_of: dict[ir.Value | None, ReducedRow] = {}

    def add(self, rows: Iterable[ReducedRow], numbers: Iterable[Iterable[ir.Value]]) -> None:
        """Add rows, and their part of each vector."""
        self.rows.extend(rows)
        for vector, more in zip(self.numbers, numbers, strict=True):
            vector.extend(more)


class _Reducer:
    def __init__(self, points: Instrument, is_counted: Callable[[str], bool]) -> None:
        self._points, self._is_counted = points, is_counted

    @cached_property
    def _flat(self) -> ir.Value:
        return self._points.stored(np.array([-1], np.int64))

    @cached_property
    def _limits(self) -> list[ir.Value]:
        return [self._points.stored(np.array(number, np.float32)) for number in _LIMITS]

    def reduce(self, graph: ir.Graph) -> _Vectors | None:
        """Reduce the values of a graph, each behind its producer; None if it has none."""
        parts, inner = _Parts(), list[_Vectors]()
        nodes = tuple(graph)
        self._reduce(parts, (value for value in graph.inputs if not value.is_initializer()))
        for node in nodes:
            inner.extend(self._of_bodies(node))
            is_copy = node.op_type in SAME_ELEMENTS and not node.domain
            if is_copy and (row := parts.row_of.get(node.inputs[0])):
                row.names.append(node.outputs[0].name or "")
                parts.row_of[node.outputs[0]] = row
            elif node.op_type != "Constant":
                self._reduce(parts, node.outputs)
        for vectors in inner:
            parts.add(vectors.rows, ([value] for value in vectors.values))
        if not parts.rows:
            return None
        sizes = len(parts.rows), len(parts.rows), sum(row.width for row in parts.rows)
        pairs = zip(parts.numbers, sizes, strict=True)
        return _Vectors([self._joined(graph, *each) for each in pairs], parts.rows)

    def _reduce(self, parts: _Parts, values: Iterable[ir.Value]) -> None:
        for value in filter(_is_reduced, values):
            name = value.name or ""
            row = parts.row_of[value] = ReducedRow([name], self._is_counted(name))
            parts.add([row], self._numbers(value, row))

    def _joined(self, graph: ir.Graph, parts: Sequence[ir.Value], size: int) -> ir.Value:
        node = self._points.node("Concat", parts, parts[0], axis=0)
        graph.append(node)
        return _declared(node.outputs[0], size)

    def _of_bodies(self, node: ir.Node) -> Iterator[_Vectors]:
        """Reduce the values in the bodies of a node, and yield the vectors that leave it."""
        is_known = node.op_type in ("If", "Loop", "Scan") and not node.domain
        if is_known and not (node.op_type == "Scan" and self._points.opset < _SINCE_STATES):
            for body in control_flow.bodies(node):
                if vectors := self.reduce(body):
                    outputs = [
                        self._output(node, body, *each) for each in zip(vectors.values, _WAYS, strict=True)
                    ]
                    yield _Vectors(outputs, vectors.rows)

    def _output(self, node: ir.Node, body: ir.Graph, vector: ir.Value, way: _Way) -> ir.Value:
        """Return a new output of a node: a vector of one of its bodies, joined over all iterations."""
        assert vector.shape is not None, "its length is known"
        for each in control_flow.bodies(node):
            each.outputs.append(vector if each is body else self._neutral(each, vector.shape.numpy(), way))
        count = len(body.outputs) - (node.op_type == "Loop")
        before = len(node.outputs)
        node.resize_outputs(count)  # some may have been left out
        for output in node.outputs[before:]:
            output.name = self._points.names.of_value(vector, "output")
        output = node.outputs[-1]
        if node.op_type == "If":
            return output
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                node.attributes[name] = ir.AttrInt64s(name, (*node.attributes[name].as_ints(), 0))
        takes_axes = self._points.opset >= way.since_input
        inputs = (output, self._points.stored(np.array([0], np.int64))) if takes_axes else (output,)
        joined = self._points.node(way.operator, inputs, output, keepdims=0)
        if not takes_axes:
            joined.attributes["axes"] = ir.AttrInt64s("axes", [0])
        return self._points.behind(output, [joined])

    def _neutral(self, branch: ir.Graph, shape: Sequence[int], way: _Way) -> ir.Value:
        node = ir.node("Constant", [], {"value": ir.tensor(np.full(shape, way.neutral, np.float32))})
        node.outputs[0].name = self._points.names.new_value("neutral")
        branch.append(node)
        return _declared(node.outputs[0], shape[0])

    def _numbers(self, value: ir.Value, row: ReducedRow) -> tuple[Sequence[ir.Value], ...]:
        """Put nodes behind a value that reduce it to the extremes of its finite elements and to counts; if it
        is not counted, to its extremes and its sum. Returns what belongs to each of the three vectors.

        Each count is a sum of its own: a difference of large sums would be inexact in float32.
        """
        nodes = list[ir.Node]()

        def add(operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
            nodes.append(self._points.node(operator, inputs, value, **attributes))
            return nodes[-1].outputs[0]

        def float32(of: ir.Value) -> ir.Value:
            return add("Cast", of, to=int(ir.DataType.FLOAT))

        flat = add("Reshape", value if value.dtype == ir.DataType.FLOAT else float32(value), self._flat)
        high, low, sums = flat, flat, [flat]
        if row.is_counted:
            infinity, minus, zero, smallest, largest = self._limits
            magnitude = add("Abs", flat)
            is_finite = add("Less", magnitude, infinity)  # NaN is not
            is_flushed = add("Xor", add("Greater", magnitude, zero), add("Greater", magnitude, smallest))
            is_beyond = add("And", add("Greater", magnitude, largest), is_finite)
            high, low = (add("Where", is_finite, flat, limit) for limit in (minus, infinity))
            sums = [float32(flags) for flags in (is_flushed, add("Not", is_finite), is_beyond)]
        counts = [float32(add("Shape", flat))] if row.is_counted else []
        counts += [add("ReduceSum", each, keepdims=1) for each in sums]
        numbers = (
            [add("ReduceMax", high, keepdims=1)],
            [add("ReduceMin", low, keepdims=1)],
            counts,
        )
        self._points.behind(value, nodes)
        return numbers


def _is_reduced(value: ir.Value) -> bool:
    is_tensor = bool(value.name) and isinstance(value.type, ir.TensorType)
    return is_tensor and value.dtype in (ir.DataType.FLOAT, *HALF_TYPES)


def _declared(vector: ir.Value, size: int) -> ir.Value:
    vector.type, vector.shape = element_types.tensor(ir.DataType.FLOAT), ir.Shape([size])
    return vector
