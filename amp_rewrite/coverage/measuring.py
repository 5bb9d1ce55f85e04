"""Any model, ours or not -> its Coverage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.colouring.patterns import pinned_as
from amp_rewrite.coverage import precision, weights
from amp_rewrite.coverage.assumptions import assumptions
from amp_rewrite.coverage.counts import Cast, Coverage, Part, Row, add
from amp_rewrite.coverage.precision import Precision
from amp_rewrite.flops import flop_count as work
from amp_rewrite.flops.flop_count import Work
from amp_rewrite.flops.opened import Dims
from amp_rewrite.model import inlining, loading, traversal, writing
from amp_rewrite.onnx_types import element_types, schema, shape_inference
from amp_rewrite.onnx_types.element_types import Types, element_type_name
from amp_rewrite.process import garbage_collection
from amp_rewrite.rewriting import checking


def measure(source: loading.ModelSource, dims: Dims | None = None) -> Coverage:
    """The coverage of a model as it stands; `source` may be whatever `rewrite` takes, and is not changed.

    `dims` gives open dimensions of the inputs a size, by symbol or as `input:axis`; others count as 1.
    Raises ModelError, and OptionError for a dimension that is not open or a size that is none.
    """
    sizes = arguments.sizes("dims", dims)
    with garbage_collection.paused(), checking.blaming(lambda: writing.checkable(source)):
        model = loading.load(source).model
        model.graph.sort()  # onnxruntime's float16 converter puts its Casts last
        warning = inlining.inline(model)
        types = shape_inference.types(model)
        found = work.count(model, types, sizes)
        return _Measured(model, types, found).coverage(sizes, warning)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A model, the types of its values, and what its nodes compute."""

    model: ir.Model
    types: Types
    work: Work

    def coverage(self, dims: Dims, warning: str | None) -> Coverage:
        parts = tuple(self._parts())
        stored = tuple(weights.find(self.model, self.types))
        return Coverage(
            nodes=add((part.precision, 1) for part in parts),
            flops=add((part.precision, part.flops or 0) for part in parts),
            weights=add((weight.precision, weight.size) for weight in stored),
            rows=_rows(parts),
            parts=parts,
            casts=tuple(self._casts()),
            stored=stored,
            dims=dict(dims),
            assumed=self.work.shapes.assumed,
            assumptions=(*filter(None, [warning]), *assumptions(self.work)),
        )

    def _parts(self) -> Iterator[Part]:
        version = element_types.versions(self.model.graph.opset_imports)
        for graph in traversal.graphs(self.model.graph):
            for node in graph:
                yield Part(
                    name=pinned_as(node),
                    operator=schema.written(node.domain, node.op_type),
                    precision=precision.of_node(node, self.types, version(node.domain)),
                    flops=self.work.of(node),
                    runs=self.work.runs.get(graph, 1),
                )

    def _casts(self) -> Iterator[Cast]:
        for graph in traversal.graphs(self.model.graph):
            for node in graph:
                if (node.domain, node.op_type) in precision.CASTS:
                    yield from self._cast(node, self.work.runs.get(graph, 1))

    def _cast(self, node: ir.Node, runs: int) -> Iterator[Cast]:
        before, after = (self._dtype(value) for value in (node.inputs[0], node.outputs[0]))
        ends = {precision.of_type(before), precision.of_type(after)}
        if before is None or after is None or ends != {Precision.HALF, Precision.FULL}:
            return
        shape = self.work.shapes.of(node.inputs[0])
        size = int(before.itemsize + after.itemsize)
        moved = None if shape is None else runs * math.prod(shape) * size
        yield Cast(pinned_as(node), element_type_name(before), element_type_name(after), moved)

    def _dtype(self, value: ir.Value | None) -> ir.DataType | None:
        kind = self.types.get(value) if value is not None else None
        return kind.dtype if kind is not None else None


def _rows(parts: Sequence[Part]) -> tuple[Row, ...]:
    """The parts by operator; most FLOPs first, then most nodes."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.operator, []).append(part)
    rows = (_row(operator, group) for operator, group in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.flops.total, -row.nodes.total, row.operator)))


def _row(operator: str, parts: Sequence[Part]) -> Row:
    return Row(
        operator,
        nodes=add((part.precision, 1) for part in parts),
        flops=add((part.precision, part.flops or 0) for part in parts),
        unknown=sum(part.flops is None for part in parts),
    )
