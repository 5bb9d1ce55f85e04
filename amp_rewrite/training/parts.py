"""The parts of a train step: what the loss needs, what state needs beyond that, and what is neither."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.training import dataflow
from amp_rewrite.training.dataflow import Dataflow
from amp_rewrite.training.linearity import Linearity


@dataclass(frozen=True, slots=True)
class Parts:
    """The nodes behind a backward pass (`linear` in the seed), what else these need beyond the forward pass
    (`beside`), and what follows the gradients (`optimiser`), with state that depends on none.
    """

    linear: Collection[ir.Node]
    beside: Collection[ir.Node]
    optimiser: Collection[ir.Node]


def divide(
    flow: Dataflow, forward: Collection[ir.Node], kept: Collection[ir.Value], found: Linearity
) -> Parts:
    """The parts of a step whose outputs `kept` are state or gradients, given what is linear in its seed."""
    linear = set(found.nodes)
    behind = flow.behind(users(flow, found)) - linear
    needed = flow.before(kept) - set(forward)
    beside = flow.before(value for node in linear for value in flow.reads[node])
    beside = {node for node in beside if node not in linear and node not in forward and node not in behind}
    return Parts(linear, beside, behind | (needed - linear - beside))


def users(flow: Dataflow, found: Linearity) -> Iterator[ir.Node]:
    """The nodes that read gradients where these are not linear."""
    for value, uses in found.frontier.items():
        yield from (node for node, use in flow.readers.get(value, ()) if use in uses)


def unscaled(flow: Dataflow, parts: Parts, found: Linearity) -> tuple[ir.Value, ...]:
    """Products of the backward pass that no scale of the seed reaches, and whose results reach the optimiser.

    A product whose result only multiplies linear values is part of the forward pass, computed again.
    """
    behind = flow.behind(users(flow, found))
    candidates = [node for node in flow.nodes if node in parts.beside or node in parts.optimiser]
    suspects = (node for node in candidates if node not in behind and dataflow.is_product(node))
    return tuple(node.outputs[0] for node in suspects if _reaches(flow, node, parts, found))


def _reaches(flow: Dataflow, product: ir.Node, parts: Parts, found: Linearity) -> bool:
    """Whether what a product outputs reaches the optimiser without passing a node that is linear."""
    linear = set(found.nodes)
    reached = dataflow.reach([product], flow.successors, lambda node: node not in linear)
    return not reached.isdisjoint(parts.optimiser)
