"""Has a reduction keep its axes where an Unsqueeze behind it gives them back, which is then left out.

Unsqueeze(ReduceMean <keepdims = 0> (x, axes), axes)   ->   ReduceMean <keepdims = 1> (x, axes)
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.traversal import graphs
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing import standing_in
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.norm_roots import is_plain, only_reader

REDUCTIONS = frozenset(
    """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare""".split()
)


def keep(model: ir.Model, kept: Container[ir.Node], held: Container[str]) -> tuple[FormChange, ...]:
    """Leaves out these Unsqueezes, but for nodes that are `kept`, and values that are `held` by name."""
    changes: list[FormChange] = []
    for node in [node for graph in graphs(model.graph) for node in graph if is_plain(node, "Unsqueeze")]:
        reduction = _reduction(node)
        if reduction is None or reduction in kept:
            continue
        if standing_in.may(reduction.outputs[0], node, kept, held):
            name = pinned_as(node)
            reduction.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
            reduction.outputs[0].shape = _with_axes(reduction.outputs[0].shape, _axes(node))
            standing_in.put(reduction.outputs[0], node, model.graph)
            changes.append(FormChange(FormChangeKind.KEPT_AXES, name, into=pinned_as(reduction)))
    return tuple(changes)


def _reduction(node: ir.Node) -> ir.Node | None:
    """The reduction whose axes an Unsqueeze gives back, and which nothing else reads; None where it does not.

    Axes of both count in what the Unsqueeze makes, the negative ones as well.
    """
    value = node.inputs[0]
    reduction = value.producer() if value is not None else None
    if reduction is None or reduction.op_type not in REDUCTIONS or reduction.domain:
        return None
    keeps = reduction.attributes.get("keepdims")
    drops = keeps is not None and not keeps.is_ref() and not keeps.as_int()
    if not drops or only_reader(reduction.outputs[0]) is not node:
        return None
    axes = _axes(node)
    return reduction if axes and sorted(axes) == sorted(_axes(reduction)) else None


def _with_axes(shape: ir.Shape | None, axes: tuple[int, ...]) -> ir.Shape | None:
    """A shape with axes of size 1 at these places of what it becomes."""
    if shape is None:
        return None
    dims, rank = [*shape], len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        dims.insert(axis, 1)
    return ir.Shape(dims)


def _axes(node: ir.Node) -> tuple[int, ...]:
    """The axes that a node states or has stored for good; none where it does not say them."""
    stated = node.attributes.get("axes")
    if stated is not None:
        return () if stated.is_ref() else tuple(stated.as_ints())
    value = node.inputs[1] if len(node.inputs) > 1 else None
    stored = stored_as(value)
    if value is None or stored is None or value.is_graph_input() or stored.dtype != ir.DataType.INT64:
        return ()
    return tuple(int(axis) for axis in stored.numpy().reshape(-1))
