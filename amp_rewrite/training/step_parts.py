"""Which node of a train step belongs to the loss, the backward pass, the optimiser or the loss scale."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from amp_rewrite.reporting.step_view import StepPart
from amp_rewrite.training.finding import Step


def of_nodes(
    step: Step, region: Collection[ir.Node], added: Iterable[ir.Node], scaled: Collection[str]
) -> Mapping[str, StepPart]:
    """The part of each node that is not of the forward pass, by the names of its outputs.

    `region` is the loss region, `added` are the nodes of the loss scale, and `scaled` the products that it
    enters.
    """
    by_node = dict.fromkeys(step.linearity.nodes, StepPart.BACKWARD)
    by_node |= dict.fromkeys(step.parts.optimiser, StepPart.OPTIMISER)
    by_node |= dict.fromkeys(region, StepPart.LOSS)
    gradients = set(step.linearity.frontier)
    for node in added:
        leaves = node.op_type == "Mul" and _stands_for(node.inputs[0], gradients)
        enters = any(value.name in scaled for value in node.outputs)
        by_node[node] = StepPart.ENTERS if enters else StepPart.LEAVES if leaves else StepPart.SCALE
    named = ((value.name or "", part) for node, part in by_node.items() for value in node.outputs)
    return MappingProxyType(dict(named))


def _stands_for(value: ir.Value | None, gradients: Collection[ir.Value]) -> bool:
    """Whether a value is a gradient, or cast from one."""
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "Cast":
        value = maker.inputs[0]
    return value in gradients
