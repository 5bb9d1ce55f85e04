"""Measures the Coverage of any ONNX model, whichever tool made it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import (
    CastTraffic,
    Coverage,
    NodeCoverage,
    OperatorCoverage,
    Precision,
    StoredWeight,
    add,
)
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.flops import shapes
from amp_rewrite.flops.shapes import FlopCount
from amp_rewrite.model import constants, inlining, loading, serialization, traversal
from amp_rewrite.onnx_types import element_types, schema, shape_inference
from amp_rewrite.onnx_types.element_types import Types, element_type_name
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.open_sizes import DEFAULT, Dims
from amp_rewrite.process import garbage_collection
from amp_rewrite.rewriting import result_checks

# The assumptions behind FLOP counts, as text.

NAMED = 5
"""How many nodes or dimensions are named in one line; the others are only counted."""


def assumptions(counted: FlopCount) -> Iterator[str]:
    """One line for each kind of assumption that was necessary."""
    if counted.shapes.assumed:
        names = some(counted.shapes.assumed)
        yield f"open dimensions count as {DEFAULT} ({names}); --dim NAME=SIZE sets them"
    if nodes := counted.unknown_trip_counts:
        yield (
            f"the bodies of {plural(len(nodes), 'node')} with a data-dependent trip count count as one run "
            f"({_named(nodes)})"
        )
    if nodes := counted.undecided_branches:
        yield (
            f"for {plural(len(nodes), 'If')} with a data-dependent condition, the costlier branch counts "
            f"({_named(nodes)})"
        )
    if nodes := [node for node, flops in counted.flops.items() if flops is None]:
        yield (
            f"{plural(len(nodes), 'node')} with unknown FLOPs (no shape or no formula) count nowhere "
            f"({_named(nodes)})"
        )


def _named(nodes: Sequence[ir.Node]) -> str:
    return some([f"{schema.written(node.domain, node.op_type)} '{pinned_as(node)}'" for node in nodes])


def some(words: Sequence[str], shown: int = NAMED) -> str:
    """The first words, and the number of the others."""
    more = len(words) - shown
    return ", ".join(words[:shown]) + (f" and {more:,} more" if more > 0 else "")


def measure(source: loading.ModelSource, dims: Dims | None = None) -> Coverage:
    """The coverage of a model as it is; `source` may be anything that `rewrite` takes, and is not changed.

    `dims` sets open dimensions of the inputs, by symbol or as `input:axis`; others count as 64. Raises
    ModelError, and OptionError for a dimension that is not open or an invalid size.

    Examples:
        >>> from amp_rewrite import measure_coverage
        >>> from amp_rewrite.demo import network
        >>> measure_coverage(network(), {"batch": 8}).flops.floats
        37345680
    """
    sizes = arguments.sizes("dims", dims)
    with garbage_collection.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        model = loading.load(source).model
        model.graph.sort()  # onnxruntime's float16 converter appends its Casts at the end
        warning = inlining.inline(model)
        counted = shapes.count(model, shape_inference.types(model), sizes)
        nodes = tuple(_nodes(counted))
        stored = tuple(_weights(model, counted.types))
        return Coverage(
            nodes=add((node.precision, 1) for node in nodes),
            flops=add((node.precision, node.flops or 0) for node in nodes),
            weights=add((weight.precision, weight.size) for weight in stored),
            rows=_by_operator(nodes),
            node_list=nodes,
            casts=tuple(_casts(counted)),
            weight_list=stored,
            dims=dict(sizes),
            assumed=counted.shapes.assumed,
            assumptions=(*filter(None, [warning]), *assumptions(counted)),
        )


def _nodes(counted: FlopCount) -> Iterator[NodeCoverage]:
    version = element_types.versions(counted.model.graph.opset_imports)
    for graph in traversal.graphs(counted.model.graph):
        for node in graph:
            yield NodeCoverage(
                name=pinned_as(node),
                operator=schema.written(node.domain, node.op_type),
                precision=counts.of_node(node, counted.types, version(node.domain)),
                flops=counted.flops.get(node),
                runs=counted.runs.get(graph, 1),
            )


def _casts(counted: FlopCount) -> Iterator[CastTraffic]:
    for graph in traversal.graphs(counted.model.graph):
        for node in graph:
            if (node.domain, node.op_type) in counts.CASTS:
                yield from _cast(node, counted, counted.runs.get(graph, 1))


def _cast(node: ir.Node, counted: FlopCount, runs: int) -> Iterator[CastTraffic]:
    before, after = (_dtype(value, counted.types) for value in (node.inputs[0], node.outputs[0]))
    ends = {counts.of_type(before), counts.of_type(after)}
    if before is None or after is None or ends != {Precision.HALF, Precision.FULL}:
        return
    shape = counted.shapes.of(node.inputs[0])
    size = int(before.itemsize + after.itemsize)
    moved = None if shape is None else runs * math.prod(shape) * size
    yield CastTraffic(pinned_as(node), element_type_name(before), element_type_name(after), moved)


def _dtype(value: ir.Value | None, types: Types) -> ir.DataType | None:
    kind = types.get(value) if value is not None else None
    return kind.dtype if kind is not None else None


def _by_operator(nodes: Sequence[NodeCoverage]) -> tuple[OperatorCoverage, ...]:
    """The nodes by operator; most FLOPs first, then most nodes."""
    found: dict[str, list[NodeCoverage]] = {}
    for node in nodes:
        found.setdefault(node.operator, []).append(node)
    rows = (
        OperatorCoverage(
            operator,
            nodes=add((node.precision, 1) for node in group),
            flops=add((node.precision, node.flops or 0) for node in group),
            unknown=sum(node.flops is None for node in group),
        )
        for operator, group in found.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.flops.total, -row.nodes.total, row.operator)))


def _weights(model: ir.Model, types: Types) -> Iterator[StoredWeight]:
    """All stored tensors, those of Constant nodes included."""
    for graph in traversal.graphs(model.graph):
        stored = [(value, value.const_value) for value in graph.initializers.values()]
        stored += [(node.outputs[0], constants.constant(node)) for node in graph if node.outputs]
        for value, tensor in stored:
            if tensor is not None:
                yield StoredWeight(value.name or "", _weight_precision(value, tensor, types), tensor.nbytes)


def _weight_precision(value: ir.Value, tensor: ir.TensorProtocol, types: Types) -> Precision:
    """HALF for tensors stored in half, and for those that only Casts to half read.

    OTHER for integers and floats of 8 bits or less.
    """
    own = counts.of_type(tensor.dtype)
    if own is not Precision.FULL or value.is_graph_output():
        return own
    consumers = {use.node for use in value.uses()}
    read_as_half = bool(consumers) and all(_casts_to_half(node, types) for node in consumers)
    return Precision.HALF if read_as_half else own


def _casts_to_half(node: ir.Node, types: Types) -> bool:
    is_cast = (node.domain, node.op_type) in counts.CASTS
    return is_cast and counts.of_type(_dtype(node.outputs[0], types)) is Precision.HALF
