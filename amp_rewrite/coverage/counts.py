"""The precision coverage of a model, as one frozen value behind all outputs."""

from __future__ import annotations

import enum
import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.costs import flop_count
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.model import constants, inlining, loading, serialization, traversal
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Layouts, Types, element_type_name
from amp_rewrite.operators.catalogue import has_arithmetic
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.open_sizes import DEFAULT, Dims
from amp_rewrite.process import startup
from amp_rewrite.rewriting import records, result_checks
from amp_rewrite.rewriting.report import Counts
from amp_rewrite.text import plural, some

# The assumptions behind FLOP counts, as text.


def assumptions(flop_count: FlopCount) -> Iterator[str]:
    """Yield one line for each kind of assumption that was necessary."""
    if flop_count.shapes.assumed:
        names = some(flop_count.shapes.assumed)
        yield f"open dimensions count as {DEFAULT} ({names}); --dim NAME=SIZE sets them"
    unknown = [node for node, flops in flop_count.flops.items() if flops is None]
    for nodes, what in (
        (
            flop_count.unknown_trip_counts,
            "the bodies of {} with a data-dependent trip count count as one run",
        ),
        (flop_count.undecided_branches, "of {} with a data-dependent condition, the costlier branch counts"),
        (unknown, "{} with unknown FLOPs (no shape or no formula) count nowhere"),
    ):
        if nodes:
            names = [f"{schema.written(node.domain, node.op_type)} '{pinned_as(node)}'" for node in nodes]
            yield f"{what.format(plural(len(nodes), 'node'))} ({some(names)})"


# The precision that a node runs in, from the element types of its inputs and outputs.


class Precision(enum.Enum):
    """FULL is float32 or float64, MIXED is both, OTHER does no float arithmetic of its own."""

    HALF = "half"
    FULL = "full"
    MIXED = "mixed"
    OTHER = "other"


HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
FULLS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Float types used in arithmetic; those of 8 bits and less are storage types and count as integers."""


def of_type(dtype: ir.DataType | None) -> Precision:
    """Return the precision of one element type."""
    if dtype in HALVES:
        return Precision.HALF
    return Precision.FULL if dtype in FULLS else Precision.OTHER


def of_node(node: ir.Node, types: Types, layouts: Layouts) -> Precision:
    """Return the precision of a node, by the port groups of its model.

    HALF when all its floats are half, FULL when none is, else MIXED. Conversions (Cast, QuantizeLinear and
    the like), quantised arithmetic, Constants and shape queries are OTHER. A port whose type the schema fixes
    to float32, such as the scales of a Resize, counts only where the node has no other floats; an empty
    stored tensor, such as the `roi` of a Resize, and an omitted output do not count.
    """
    if not has_arithmetic(node.domain, node.op_type):
        return Precision.OTHER
    ports = (*node.inputs, *node.outputs)
    groups = [group for group in layouts.of(node, types.get) or () if not group.var.is_fixed]
    free = [node.inputs[i] for group in groups for i in group.inputs]
    free += [node.outputs[i] for group in groups for i in group.outputs]
    precisions = _of(types, free) or _of(types, ports)
    if not precisions:
        return Precision.OTHER
    return precisions.pop() if len(precisions) == 1 else Precision.MIXED


def _of(types: Types, values: Iterable[ir.Value | None]) -> set[Precision]:
    counting = (value for value in values if value is not None and constants.has_elements(value))
    return {of_type(_dtype(value, types)) for value in counting} - {Precision.OTHER}


def add(amounts: Iterable[tuple[Precision, int]]) -> Counts:
    """Return the sums by precision."""
    sums = dict.fromkeys(Precision, 0)
    for precision, amount in amounts:
        sums[precision] += amount
    return Counts(**{precision.value: amount for precision, amount in sums.items()})


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """A node: its name (of its first output if it has none), operator, precision, and FLOPs in one run.

    `flops` is None where unknown. `runs` is how often the node runs, 0 in a branch that is not counted.
    """

    name: str
    operator: str
    precision: Precision
    flops: int | None
    runs: int = 1


@dataclass(frozen=True, slots=True)
class CastTraffic:
    """A Cast between half and float32; `moved` counts the bytes that it reads and writes in one run, None
    where the shape of its input is unknown.
    """

    name: str
    before: str
    after: str
    moved: int | None


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A stored tensor, the precision that it is used in, and its size in bytes."""

    name: str
    precision: Precision
    size: int


@dataclass(frozen=True, slots=True)
class OperatorCoverage:
    """The nodes of one operator; `unknown` is the number of them with unknown FLOPs."""

    operator: str
    nodes: Counts
    flops: Counts
    unknown: int


@dataclass(frozen=True, slots=True, repr=False)
class Coverage:
    """The part of a model that runs in half.

    `nodes`, `flops` (of one run) and `weights` (bytes) count the whole model, bodies included; `rows` count
    by operator, most FLOPs first. `node_list` has all nodes in order, `casts` the Casts between half and
    float32, `weight_list` all stored tensors. `dims` are the sizes given to open dimensions, `assumed` names
    those that count as 64, and `assumptions` are those behind the numbers, as text.

    Examples:
        >>> from amp_rewrite import measure_coverage, rewrite
        >>> from amp_rewrite.demo import network
        >>> coverage = measure_coverage(rewrite(network()).model)
        >>> coverage.nodes, len(coverage.casts)
        (Counts(half=44, full=6, mixed=0, other=1), 4)
        >>> f"{coverage.flops.share:.1%}"
        '99.9%'
    """

    nodes: Counts
    flops: Counts
    weights: Counts
    rows: tuple[OperatorCoverage, ...]
    node_list: tuple[NodeCoverage, ...]
    casts: tuple[CastTraffic, ...]
    weight_list: tuple[StoredWeight, ...]
    dims: Dims
    assumed: tuple[str, ...]
    assumptions: tuple[str, ...]

    def __repr__(self) -> str:
        """Return the shares of nodes, FLOPs and weights in half, and the number of Casts, in one line."""
        totals = {"nodes": self.nodes, "FLOPs": self.flops, "weights": self.weights}
        shares = (f"{count.share:.1%} of {name}" for name, count in totals.items() if count.share is not None)
        return f"Coverage({', '.join(shares)} in half, {plural(len(self.casts), 'Cast')})"

    @property
    def cast_bytes(self) -> int:
        """The bytes that Casts between half and float32 read and write in one run, as far as known."""
        return sum(cast.moved or 0 for cast in self.casts)

    @property
    def unknown(self) -> tuple[NodeCoverage, ...]:
        """The nodes with unknown FLOPs."""
        return tuple(node for node in self.node_list if node.flops is None)

    def row(self, operator: str) -> OperatorCoverage | None:
        """Return the row of an operator; None where the model does not use it.

        Examples:
            >>> from amp_rewrite import measure_coverage
            >>> from amp_rewrite.demo import network
            >>> measure_coverage(network()).row("Conv").nodes
            Counts(half=0, full=3, mixed=0, other=0)
        """
        return next((row for row in self.rows if row.operator == operator), None)

    def summary(self) -> dict[str, Any]:
        """Return the numbers without single nodes as plain data: the content of a baseline.

        Examples:
            >>> from amp_rewrite import measure_coverage
            >>> from amp_rewrite.demo import network
            >>> measure_coverage(network()).summary()["casts"]
            {'count': 0, 'bytes': 0}
        """
        return {
            "nodes": self.nodes.to_json(),
            "flops": self.flops.to_json(),
            "weights": self.weights.to_json(),
            "casts": {"count": len(self.casts), "bytes": self.cast_bytes},
            "unknown_flops": len(self.unknown),
            "dims": dict(self.dims),
            "assumed": list(self.assumed),
            "operators": {
                row.operator: {
                    "nodes": row.nodes.to_json(),
                    "flops": row.flops.to_json(),
                    "unknown": row.unknown,
                }
                for row in self.rows
            },
        }

    def to_json(self) -> dict[str, Any]:
        """Return the whole coverage as plain data.

        Examples:
            >>> from amp_rewrite import measure_coverage
            >>> from amp_rewrite.demo import network
            >>> measure_coverage(network()).to_json()["nodes"]
            {'half': 0, 'full': 52, 'mixed': 0, 'other': 1, 'share': 0.0}
        """
        return {
            **self.summary(),
            "assumptions": list(self.assumptions),
            "cast_nodes": records.plain(self.casts),
            "weight_list": records.plain(self.weight_list),
            "node_list": records.plain(self.node_list),
        }


# Measures the Coverage of any ONNX model, whichever tool made it.


def measure(source: loading.ModelSource, dims: Dims | None = None) -> Coverage:
    """Return the coverage of a model as it is; `source` is what `rewrite` takes, and is not changed.

    `dims` sets open dimensions of the inputs, by symbol or as `input:axis`; others count as 64. Raises
    ModelError, and OptionError for a dimension that is not open or an invalid size.

    Examples:
        >>> from amp_rewrite import measure_coverage
        >>> from amp_rewrite.demo import network
        >>> measure_coverage(network(), {"batch": 8}).flops.floats
        37345680
    """
    sizes = arguments.sizes("dims", dims)
    with startup.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        model = loading.load(source).model
        model.graph.sort()  # onnxruntime's float16 converter appends its Casts at the end
        warning = inlining.inline(model)
        estimate = flop_count.count(model, element_types.infer(model), sizes)
        casts = dict(_casts(estimate))
        nodes = tuple(_nodes(estimate, casts))
        weights = tuple(_weights(model, estimate.types))
        return Coverage(
            nodes=add((node.precision, 1) for node in nodes),
            flops=add((node.precision, node.flops or 0) for node in nodes),
            weights=add((weight.precision, weight.size) for weight in weights),
            rows=_by_operator(nodes),
            node_list=nodes,
            casts=tuple(casts.values()),
            weight_list=weights,
            dims=dict(sizes),
            assumed=estimate.shapes.assumed,
            assumptions=(*filter(None, [warning]), *assumptions(estimate)),
        )


def _nodes(flop_count: FlopCount, casts: Container[ir.Node]) -> Iterator[NodeCoverage]:
    """Yield the counts of all nodes but the Casts between half and float32."""
    layouts = Layouts(flop_count.model)
    for graph in traversal.graphs(flop_count.model.graph):
        for node in (node for node in graph if node not in casts):
            yield NodeCoverage(
                name=pinned_as(node),
                operator=schema.written(node.domain, node.op_type),
                precision=of_node(node, flop_count.types, layouts),
                flops=flop_count.flops.get(node),
                runs=flop_count.runs.get(graph, 1),
            )


def _is_cast(node: ir.Node) -> bool:
    return bool(record_of(node).traits & Trait.CASTS)


def _casts(flop_count: FlopCount) -> Iterator[tuple[ir.Node, CastTraffic]]:
    for graph in traversal.graphs(flop_count.model.graph):
        for node in filter(_is_cast, graph):
            before, after = (_dtype(value, flop_count.types) for value in (node.inputs[0], node.outputs[0]))
            kinds = {of_type(before), of_type(after)}
            if before is None or after is None or kinds != {Precision.HALF, Precision.FULL}:
                continue
            shape, size = flop_count.shapes.of(node.inputs[0]), int(before.itemsize + after.itemsize)
            moved = None if shape is None else flop_count.runs.get(graph, 1) * math.prod(shape) * size
            yield (
                node,
                CastTraffic(pinned_as(node), element_type_name(before), element_type_name(after), moved),
            )


def _dtype(value: ir.Value | None, types: Types) -> ir.DataType | None:
    kind = types.get(value) if value is not None else None
    return kind.dtype if kind is not None else None


def _by_operator(nodes: Sequence[NodeCoverage]) -> tuple[OperatorCoverage, ...]:
    """Return the nodes by operator; most FLOPs first, then most nodes."""
    groups: dict[str, list[NodeCoverage]] = {}
    for node in nodes:
        groups.setdefault(node.operator, []).append(node)
    rows = (
        OperatorCoverage(
            operator,
            nodes=add((node.precision, 1) for node in group),
            flops=add((node.precision, node.flops or 0) for node in group),
            unknown=sum(node.flops is None for node in group),
        )
        for operator, group in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.flops.total, -row.nodes.total, row.operator)))


def _weights(model: ir.Model, types: Types) -> Iterator[StoredWeight]:
    """Yield all stored tensors, those of Constant nodes included."""
    for graph in traversal.graphs(model.graph):
        stored = [(value, value.const_value) for value in graph.initializers.values()]
        stored += [(node.outputs[0], constants.constant(node)) for node in graph if node.outputs]
        for value, tensor in stored:
            if tensor is not None:
                yield StoredWeight(
                    value.name or "", _used_in(value, of_type(tensor.dtype), types), tensor.nbytes
                )


def _used_in(value: ir.Value, own: Precision, types: Types) -> Precision:
    """Return the precision of a stored tensor: HALF also for one that only Casts to half read."""
    consumers = {use.node for use in value.uses()}
    if own is not Precision.FULL or value.is_graph_output() or not consumers:
        return own
    casts = all(map(_is_cast, consumers))
    to_half = casts and {of_type(_dtype(node.outputs[0], types)) for node in consumers} == {Precision.HALF}
    return Precision.HALF if to_half else own
