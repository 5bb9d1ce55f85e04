"""A float32 model whose outputs are the extremes of its float values, and counts of their elements.

Nodes behind each value reduce it within the run, so that no value is retained. The outputs are three vectors:
the largest elements of the values, the smallest, and sums. Those of a body leave it through new outputs of an
If, Loop or Scan: the other branch of an If yields neutral elements; a Loop and a Scan carry the vectors from
one iteration to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.model import proto_traversal, traversal
from amp_rewrite.numerics.half import FLOAT16, HALF_TYPES
from amp_rewrite.onnx_types.element_types import Types

SINCE_COUNTS = 9
"""The first opset for element counts, that of Where."""

_SINCE_SEQUENCES = 11
"""The first opset where two nodes concatenate any number of scalars."""

_SINCE_STATES = 9
"""The first opset where a Scan has no batch axis."""

_SAME_ELEMENTS = frozenset("Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
"""Operators whose output has the elements of their first input."""

FloatTypes = Sequence[Mapping[str, int]]
"""The element types of the float values of each graph, by name, in the order of `traversal.graphs`."""


def float_types(model: ir.Model, types: Types) -> FloatTypes:
    """Return the types of the float32 and half values, without initializers and Constants."""
    return [
        {value.name or "": int(dtype) for value in _varying(graph) if (dtype := _float(types.get(value)))}
        for graph in traversal.graphs(model.graph)
    ]


def _varying(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (value for value in graph.inputs if not value.is_initializer())
    for node in graph:
        if node.op_type != "Constant":
            yield from (value for value in node.outputs if value.name)


def _float(kind: ir.TypeProtocol | None) -> ir.DataType | None:
    """Return the element type of a float32 or half tensor, else None."""
    if isinstance(kind, ir.TensorType) and kind.dtype in (ir.DataType.FLOAT, *HALF_TYPES):
        return kind.dtype
    return None


@dataclass(frozen=True, slots=True)
class Row:
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
    rows: Sequence[Row], vectors: Iterable[Any]
) -> Iterator[tuple[Row, tuple[Any, Any, list[Any]]]]:
    """Yield each row with its numbers in the three vectors of a run."""
    highs, lows, sums = (vector.tolist() for vector in vectors)
    ends = itertools.accumulate(row.width for row in rows)
    for row, high, low, end in zip(rows, highs, lows, ends, strict=True):
        yield row, (high, low, sums[end - row.width : end])


def reduce_values(
    graph: onnx.GraphProto, types: FloatTypes, opset: int, is_counted: Callable[[str], bool]
) -> Sequence[Row]:
    """Replace the outputs of a graph by the three vectors of the values with these `types`.

    Returns their rows; a graph without such values has none, and stays as it is.
    """
    return _Reducer(graph, types, opset, is_counted).run(graph)


_NEUTRAL = (-math.inf, math.inf, 0.0)
_MERGED_BY = ("Max", "Min", "Add")
_LIMITS = {
    "infinity": math.inf,
    "minus": -math.inf,
    "zero": 0.0,
    "flushed": FLOAT16.smallest / 2,  # the largest magnitude that float16 rounds to 0
    "largest": FLOAT16.largest,
}


@dataclass(frozen=True, slots=True)
class _Vectors:
    """The names of the three vectors of a graph, and their rows."""

    names: Sequence[str]
    rows: Sequence[Row]

    @property
    def sizes(self) -> Sequence[int]:
        return len(self.rows), len(self.rows), sum(row.width for row in self.rows)

    @property
    def infos(self) -> list[onnx.ValueInfoProto]:
        """The declarations of the vectors."""
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [size])
            for name, size in zip(self.names, self.sizes, strict=True)
        ]

    def neutral(self) -> list[onnx.NodeProto]:
        """Yield constants of neutral elements for the vectors."""
        filled = (np.full(size, fill, np.float32) for size, fill in zip(self.sizes, _NEUTRAL, strict=True))
        return [_constant(name, array) for name, array in zip(self.names, filled, strict=True)]


class _Reducer:
    """A builder of reductions in a graph and its bodies; methods append to `nodes`, in graph order."""

    def __init__(
        self, graph: onnx.GraphProto, types: FloatTypes, opset: int, is_counted: Callable[[str], bool]
    ) -> None:
        self._types = iter(types)
        self._opset = opset
        self._is_counted = is_counted
        self._prefix = proto_traversal.unused_prefix(graph, "amp_rewrite_reduced")
        self._names = (f"{self._prefix}{at}" for at in itertools.count())

    def run(self, graph: onnx.GraphProto) -> Sequence[Row]:
        limits = [_constant(self._limit(name), np.float32(number)) for name, number in _LIMITS.items()]
        vectors = self._reduce(graph)
        if vectors is None:
            return ()
        _insert(graph.node, 0, limits)
        del graph.output[:]
        graph.output.extend(vectors.infos)
        return vectors.rows

    def _reduce(self, graph: onnx.GraphProto) -> _Vectors | None:
        """Reduce the values of a graph, each behind its producer; None if it has none."""
        types = next(self._types, {})
        rows, numbers, inner = list[Row](), list[tuple[str, str, Sequence[str]]](), list[_Vectors]()
        nodes, row_of = list[onnx.NodeProto](), dict[str, Row]()

        def reduce_each(names: Iterable[str]) -> None:
            for name in (name for name in names if name in types):
                row_of[name] = Row([name], self._is_counted(name))
                rows.append(row_of[name])
                is_float32 = types[name] == TensorProto.FLOAT
                value = name if is_float32 else self._add(nodes, "Cast", name, to=TensorProto.FLOAT)
                numbers.append((self._count if rows[-1].is_counted else self._extremes)(nodes, value))

        reduce_each(entry.name for entry in graph.input)
        for node in graph.node:
            inner.extend(self._reduce_bodies(node, nodes))
            nodes.append(node)
            is_copy = node.domain == "" and node.op_type in _SAME_ELEMENTS
            if is_copy and (row := row_of.get(node.input[0])):
                row.names.append(node.output[0])
                row_of[node.output[0]] = row
            else:
                reduce_each(node.output)
        if rows or inner:
            highs, lows, sums = zip(*numbers, strict=True) if numbers else ((), (), ())
            scalars = (highs, lows, list(itertools.chain(*sums)))
            bodies = zip(*(vectors.names for vectors in inner), strict=True) if inner else ((), (), ())
            names = [self._pack(nodes, *each) for each in zip(scalars, bodies, strict=True)]
            rows.extend(row for vectors in inner for row in vectors.rows)
            del graph.node[:]
            graph.node.extend(nodes)
            return _Vectors(names, rows)
        return None

    def _reduce_bodies(self, node: onnx.NodeProto, nodes: list[onnx.NodeProto]) -> Iterator[_Vectors]:
        """Reduce the values in the bodies of a node, and yield the vectors as outputs of the node."""
        is_known = node.domain == "" and node.op_type in ("If", "Loop", "Scan")
        if node.op_type == "Scan" and self._opset < _SINCE_STATES:
            is_known = False
        for body in proto_traversal.bodies(node):
            if not is_known:
                for _ in proto_traversal.graphs(body):
                    next(self._types, None)
            elif vectors := self._reduce(body):
                is_if = node.op_type == "If"
                yield (self._add_outputs if is_if else partial(self._carry, nodes))(node, body, vectors)

    def _add_outputs(self, node: onnx.NodeProto, branch: onnx.GraphProto, vectors: _Vectors) -> _Vectors:
        """Add the vectors of one branch to the outputs of an If."""
        _pad(node.output, len(branch.output))
        for each in proto_traversal.bodies(node):
            leaving = vectors
            if each is not branch:
                leaving = self._renamed(vectors)
                each.node.extend(leaving.neutral())
            each.output.extend(leaving.infos)
        outer = self._renamed(vectors)
        node.output.extend(outer.names)
        return outer

    def _carry(
        self, nodes: list[onnx.NodeProto], node: onnx.NodeProto, body: onnx.GraphProto, vectors: _Vectors
    ) -> _Vectors:
        """Carry vectors through a Loop or Scan, behind its own loop-carried values."""
        first, condition = (2, 1) if node.op_type == "Loop" else (0, 0)
        _pad(node.input, first)
        scanned = sum(attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs")
        carried = len(node.input) - first - scanned
        starts, entering, leaving, outer = (self._renamed(vectors) for _ in range(4))
        nodes.extend(starts.neutral())
        _pad(node.output, carried)
        _insert(node.input, first + carried, starts.names)
        _insert(body.input, first + carried, entering.infos)
        _insert(body.output, condition + carried, leaving.infos)
        _insert(node.output, carried, outer.names)
        merged = zip(_MERGED_BY, entering.names, vectors.names, leaving.names, strict=True)
        body.node.extend(helper.make_node(op, [before, here], [after]) for op, before, here, after in merged)
        return outer

    def _renamed(self, vectors: _Vectors) -> _Vectors:
        return _Vectors([next(self._names) for _ in vectors.names], vectors.rows)

    def _limit(self, name: str) -> str:
        return f"{self._prefix}_{name}"

    def _add(self, nodes: list[onnx.NodeProto], operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node, and return the name of its output."""
        output = next(self._names)
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _extremes(self, nodes: list[onnx.NodeProto], value: str) -> tuple[str, str, Sequence[str]]:
        """Append nodes that reduce a value to its extremes and its sum."""
        operators = ("ReduceMax", "ReduceMin", "ReduceSum")
        high, low, total = (self._add(nodes, operator, value, keepdims=0) for operator in operators)
        return high, low, (total,)

    def _count(self, nodes: list[onnx.NodeProto], value: str) -> tuple[str, str, Sequence[str]]:
        """Append nodes that reduce a value to the extremes of its finite elements, and to counts.

        Each count is a sum of its own: a difference of large sums would be inexact in float32.
        """

        def add(operator: str, *inputs: str, **attributes: Any) -> str:
            return self._add(nodes, operator, *inputs, **attributes)

        infinity, minus, zero, smallest, largest = map(self._limit, _LIMITS)
        magnitude = add("Abs", value)
        is_finite = add("Less", magnitude, infinity)  # NaN is not
        is_flushed = add("Xor", add("Greater", magnitude, zero), add("Greater", magnitude, smallest))
        is_beyond = add("And", add("Greater", magnitude, largest), is_finite)
        high = add("ReduceMax", add("Where", is_finite, value, minus), keepdims=0)
        low = add("ReduceMin", add("Where", is_finite, value, infinity), keepdims=0)
        counts = [
            add("ReduceSum", add("Cast", flags, to=TensorProto.FLOAT), keepdims=0)
            for flags in (is_flushed, add("Not", is_finite), is_beyond)
        ]
        return high, low, (add("Cast", add("Size", value), to=TensorProto.FLOAT), *counts)

    def _pack(self, nodes: list[onnx.NodeProto], scalars: Sequence[str], vectors: Iterable[str]) -> str:
        """Append nodes that concatenate scalars, and vectors behind them."""
        parts = list[str]()
        if scalars and self._opset < _SINCE_SEQUENCES:
            parts.extend(self._add(nodes, "Unsqueeze", scalar, axes=[0]) for scalar in scalars)
        elif scalars:
            several = self._add(nodes, "SequenceConstruct", *scalars)
            parts.append(self._add(nodes, "ConcatFromSequence", several, axis=0, new_axis=1))
        return self._add(nodes, "Concat", *parts, *vectors, axis=0)


def _constant(name: str, array: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array)))


def _pad(names: MutableSequence[str], count: int) -> None:
    """Append empty names for omitted trailing ones."""
    names.extend("" for _ in range(count - len(names)))


def _insert(items: MutableSequence[Any], at: int, new: Iterable[Any]) -> None:
    """Insert into a repeated message field, which copies the items."""
    rest = list(items[at:])
    del items[at:]
    items.extend(new)
    items.extend(rest)
