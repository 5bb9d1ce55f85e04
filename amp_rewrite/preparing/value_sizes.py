"""The shape of every value of a model in numbers, with a size for every dimension that the model leaves open.

onnx infers the model with these sizes. Where it gives up, as on a Reshape whose shape is computed, what is
computed from the shapes that it found is evaluated, and it infers the model again with these numbers.
"""

from __future__ import annotations

import importlib
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from amp_rewrite.model import constants, patterns, proto_traversal, traversal
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.onnx_types.control_flow import Binding
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions
from amp_rewrite.preparing.value_shapes import Array, ValueFacts, build_structure
from amp_rewrite.process import worker

Shape = tuple[int, ...]
Sizes = tuple[int | None, ...]
"""The size of each axis, None where unknown."""
_News = Iterator[tuple[ir.Value, Sizes | None]]

SMALL = 4096
"""Maximum number of elements of integer and boolean values that are computed: shapes may depend on them."""

FEW = 16
"""The same for float values: the scales of a Resize, the ends of a Range."""

ROUNDS = 64
"""The most inferences of one model."""


@dataclass(frozen=True, slots=True)
class ValueShapes:
    """The shapes of a model's values, and the number of runs of each body.

    `assumed` names the open dimensions that count as DEFAULT: a symbol, or `input:axis`.
    """

    known: Mapping[ir.Value, Shape]
    trip_counts: Mapping[ir.Graph, int]
    assumed: tuple[str, ...]

    def of(self, value: ir.Value | None) -> Shape | None:
        """Return the shape of a value; None where it is unknown, and for None."""
        return self.known.get(value) if value is not None else None


def infer(model: ir.Model, types: Types, dims: Dims | None = None) -> ValueShapes:
    """Return the shapes of all values of the main graph and its subgraphs.

    `dims` sets open dimensions of the inputs, by symbol or as `input:axis`; others count as 64. Raises
    OptionError when it names a dimension that is not open. An output of a node without shape inference keeps
    the shape that the model declares, if any.
    """
    dimensions = OpenDimensions(model.graph, dims or {})
    inference = _SizeInference(model, types, dimensions)
    for _ in range(ROUNDS):
        is_news = inference.infer()
        if inference.is_complete():
            break
        is_news |= inference.compute()
        if not (is_news or inference.cross_borders()):
            break
    return ValueShapes(inference.static(), inference.trip_counts, dimensions.assumed)


class _SizeInference:
    """The sizes of values, the contents of small ones, and how often bodies run, from round to round."""

    def __init__(self, model: ir.Model, types: Types, dimensions: OpenDimensions) -> None:
        self._model, self._types = model, types
        self._nodes = traversal.nodes(model.graph)
        self._overridable = model.ir_version >= constants.CONSTANT_INPUTS_BELOW
        self._sizes: dict[ir.Value, Sizes | None] = {}
        self._beyond: set[ir.Value] = set()
        self._contents: dict[ir.Value, Array] = {}
        self._settled: set[ir.Node] = set()
        self._relevant = dict(self._nodes)
        self.trip_counts: dict[ir.Graph, int] = {}
        for graph, nodes in self._nodes.items():
            for value in (*graph.inputs, *(value for node in nodes for value in node.outputs)):
                self._sizes[value] = dimensions.of_value(value)
            for value in graph.initializers.values():
                if value.const_value is not None:
                    self._store(value, value.const_value)
            for node in nodes:
                if (tensor := constants.constant(node)) is not None:
                    self._store(node.outputs[0], tensor)
                    self._settled.add(node)
        every_node = itertools.chain.from_iterable(self._nodes.values())
        self._waiting = [node for node in every_node if node not in self._settled]

    def _store(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        self._sizes[value] = dims = constants.dims(tensor)
        is_fixed = not (self._overridable and value.is_graph_input())
        if is_fixed and _is_small(tensor.dtype, math.prod(dims)):
            self._contents[value] = constants.numbers(tensor)

    def static(self) -> dict[ir.Value, Shape]:
        """Return the shapes of which all sizes are known."""
        sizes = ((value, _static(sizes)) for value, sizes in self._sizes.items())
        return {value: shape for value, shape in sizes if shape is not None}

    def is_complete(self) -> bool:
        """Return whether nothing is left to find: every shape is known, and no body runs."""
        return len(self._nodes) == 1 and all(
            _static(sizes) is not None for value, sizes in self._sizes.items() if value.name
        )

    def infer(self) -> bool:
        """Refine the sizes by what onnx infers; return whether the model declares more."""
        facts = ValueFacts(self._shape, self._contents, self._beyond, self._settled)
        structure = build_structure(self._model, self._relevant, self._types, facts)
        graphs = proto_traversal.graphs(worker.infer(structure.proto) or onnx.GraphProto())
        infos = (info for graph in graphs for info in proto_traversal.value_infos(graph))
        sizes_by_name = {info.name: _sizes(info.type) for info in infos}
        count = len(self._beyond)
        for value in [each for each in self._sizes if each.producer() not in self._settled]:
            sizes = sizes_by_name.get(structure.name(value))
            self._refine(value, sizes)
            if self._sizes[value] != sizes and value.const_value is None:
                self._beyond.add(value)
        self._settled.update(filter(self._is_settled, itertools.chain.from_iterable(self._relevant.values())))
        for graph, nodes in self._relevant.items():
            self._relevant[graph] = tuple(node for node in nodes if self._is_relevant(node, facts))
        return len(self._beyond) > count

    def _shape(self, value: ir.Value) -> ir.Shape | None:
        sizes = self._sizes.get(value)
        return None if sizes is None else ir.Shape(sizes)

    def _is_settled(self, node: ir.Node) -> bool:
        is_static = all(_static(self._sizes[value]) is not None for value in node.outputs if value.name)
        return is_static and not control_flow.bodies(node)

    def _is_relevant(self, node: ir.Node, facts: ValueFacts) -> bool:
        """Return whether a later inference may need a node: it is not settled, or feeds one that is not."""
        return node not in self._settled or any(map(facts.is_read, node.outputs))

    def _refine(self, value: ir.Value, sizes: Sizes | None) -> bool:
        """Take over sizes of a value where they are known; return whether that is news."""
        before = self._sizes[value]
        if sizes is None or value in self._contents:
            return False
        if before is not None and len(before) == len(sizes):
            sizes = tuple(old if new is None else new for new, old in zip(sizes, before, strict=True))
        self._sizes[value] = sizes
        return sizes != before

    def compute(self) -> bool:
        """Evaluate small nodes whose inputs are known; return whether any was."""
        count, waiting = len(self._contents), list[ir.Node]()
        for node in self._waiting:
            arrays = self._inputs(node)
            if arrays is None or not self._is_computable(node):
                waiting.append(node)
                continue
            for value, array in zip(node.outputs, self._evaluate(node, arrays), strict=True):
                kind = self._types.get(value)
                if array is not None and kind is not None and _is_small(kind.dtype, array.size):
                    self._contents[value], self._sizes[value] = array, array.shape
        self._waiting = waiting
        return len(self._contents) > count

    def _inputs(self, node: ir.Node) -> list[Array | None] | None:
        """Return the contents of the inputs of a node; None if one is unknown."""
        if patterns.is_default(node, "Shape", "Size") and node.inputs and node.inputs[0] is not None:
            shape = _static(self._sizes.get(node.inputs[0]))
            return None if shape is None else [_of_shape(shape)]
        arrays = [None if value is None else self._contents.get(value) for value in node.inputs]
        is_known = all(
            (value is None) == (array is None) for value, array in zip(node.inputs, arrays, strict=True)
        )
        return arrays if is_known else None

    def _is_computable(self, node: ir.Node) -> bool:
        """Return whether a node is deterministic, and its outputs are small."""
        traits = record_of(node).traits
        if node.domain or traits & Trait.DRAWS or control_flow.bodies(node):
            return False
        shapes = [_static(self._sizes.get(value)) for value in node.outputs if value.name]
        is_small = all(shape is not None and math.prod(shape) <= SMALL for shape in shapes)
        return is_small or bool(traits & Trait.COUNTS)  # what is counted is never much more than there is

    def _evaluate(self, node: ir.Node, arrays: Sequence[Array | None]) -> Sequence[Array | None]:
        """Return the outputs of a node by onnx's evaluator; None where that fails."""
        proto = ir.serde.serialize_node(node)
        inputs = [f"i{at}" if array is not None else "" for at, array in enumerate(arrays)]
        outputs = [f"o{at}" for at in range(len(node.outputs))]
        proto.input[:], proto.output[:] = inputs, outputs
        unknown = onnx.TypeProto()
        feeds = {name: array for name, array in zip(inputs, arrays, strict=True) if name}
        graph = helper.make_graph(
            [proto],
            "one",
            [helper.make_value_info(name, unknown) for name in feeds],
            [helper.make_value_info(name, unknown) for name in outputs],
        )
        imports = {"": 1, **self._model.graph.opset_imports}
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid(*pair) for pair in imports.items()]
        )
        reference = importlib.import_module("onnx.reference")  # slow to import, and few models need it
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = reference.ReferenceEvaluator(model).run(None, feeds)
        except Exception:  # an operator version without a reference, or values that do not fit
            return [None] * len(outputs)
        return [np.asarray(each) if isinstance(each, (np.ndarray, np.generic)) else None for each in results]

    def cross_borders(self) -> bool:
        """Count the runs of bodies, and carry sizes across their borders where onnx does not; return whether
        any is new.
        """
        is_news = False
        for node in filter(control_flow.may_have_bodies, itertools.chain.from_iterable(self._nodes.values())):
            bindings = control_flow.bindings(node) or ()
            runs = dict(self._count_runs(node)) if bindings else {}
            self.trip_counts.update(runs)
            news = [each for binding in bindings for each in self._across(node, binding, runs)]
            for value in [value for value, sizes in news if self._refine(value, sizes)]:
                self._beyond.add(value)
                is_news = True
        return is_news

    def _count_runs(self, node: ir.Node) -> Iterator[tuple[ir.Graph, int]]:
        """Yield the bodies of a node with their runs in one run of it, where these do not depend on data."""
        first = self._contents.get(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
        if node.op_type == "If" and first is not None:
            yield node.attributes["then_branch"].as_graph(), int(first.all())
            yield node.attributes["else_branch"].as_graph(), int(not first.all())
        elif node.op_type == "Loop" and first is not None and first.size == 1:
            if self._runs_to_the_limit(node, body := node.attributes["body"].as_graph()):
                yield body, max(int(first.reshape(())), 0)
        elif node.op_type == "Scan" and len(node.inputs) == len(node.attributes["body"].as_graph().inputs):
            scanned = node.inputs[len(node.inputs) - node.attributes["num_scan_inputs"].as_int()]
            sizes = self._sizes.get(scanned) if scanned is not None else None
            axis = next(iter(node.attributes.get_ints("scan_input_axes", ())), 0)
            if sizes is not None and axis < len(sizes) and (length := sizes[axis]) is not None:
                yield node.attributes["body"].as_graph(), length

    def _runs_to_the_limit(self, loop: ir.Node, body: ir.Graph) -> bool:
        """Return whether a loop's condition never ends it: it is always true, or passed through unchanged."""
        condition = loop.inputs[1] if len(loop.inputs) > 1 else None
        start = None if condition is None else self._contents.get(condition)
        if not (condition is None if start is None else start.all()):
            return False
        origin = patterns.origin(body.outputs[0])
        again = self._contents.get(origin)
        return origin is body.inputs[1] or (again is not None and bool(again.all()))

    def _across(self, node: ir.Node, binding: Binding, runs: Mapping[ir.Graph, int]) -> _News:
        """Yield values on the other side of a border: those that a loop carries or collects, and those of the
        branch that runs, or else the largest.
        """
        if node.op_type not in ("If", "Loop"):
            return
        for body, port in binding.enters:
            outer = node.inputs[binding.inputs[0]]
            yield body.inputs[port], None if outer is None else self._sizes.get(outer)
        inside = [
            self._sizes.get(body.outputs[port])
            for body, port in binding.leaves
            if node.op_type == "Loop" or runs.get(body, 1)
        ]
        results = [sizes for sizes in inside if sizes is not None]
        if results and len(results) == len(inside):
            largest = max(results, key=lambda sizes: math.prod(size or 0 for size in sizes))
            is_collected = node.op_type == "Loop" and not binding.inputs
            sizes = (runs.get(binding.leaves[0][0]), *largest) if is_collected else largest
            yield from ((value, sizes) for port in binding.outputs for value in node.outputs[port : port + 1])


def _of_shape(shape: Shape) -> Array | None:
    """Return an array of a shape that takes no memory; None for more elements than NumPy can count."""
    try:
        return np.broadcast_to(np.zeros((), np.int8), shape)
    except ValueError:
        return None


def _static(sizes: Sizes | None) -> Shape | None:
    """Return a shape if every size is known."""
    if sizes is None or any(size is None or size < 0 for size in sizes):
        return None
    return tuple(size for size in sizes if size is not None)


def _sizes(kind: onnx.TypeProto) -> Sizes | None:
    """Return the sizes of a tensor type; None where the rank is unknown, or the type is not a tensor."""
    if not kind.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim)


def _is_small(dtype: ir.DataType, count: int) -> bool:
    """Return whether a value with this many elements is small enough to compute."""
    if dtype == ir.DataType.STRING:
        return False
    return count <= (FEW if dtype.is_floating_point() else SMALL)
