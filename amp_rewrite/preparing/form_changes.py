"""The changes that preparation made to a model, as data."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import OptionError
from amp_rewrite.model import traversal
from amp_rewrite.policy.evidence import Evidence, Reason
from amp_rewrite.policy.node_patterns import matcher, pinned_as
from amp_rewrite.policy.options import Form

# Nodes whose form the user controls: those that a pin or a list names, and the nodes in their bodies.


def nodes_to_preserve(model: ir.Model, form: Form) -> frozenset[ir.Node]:
    """Return the nodes that are not rewritten: pinned ones, and those of operators moved to another list."""
    if not form.kept_operators:
        return pinned_nodes(model, form)
    nodes = traversal.every_node(model.graph)
    operator_matches = {node for node in nodes if (node.domain, node.op_type) in form.kept_operators}
    return pinned_nodes(model, form) | operator_matches


def pinned_nodes(model: ir.Model, form: Form) -> frozenset[ir.Node]:
    """Return the nodes that are pinned by name or pattern, and all nodes in their bodies."""
    if not form.kept_nodes:
        return frozenset()
    return frozenset(traversal.nodes_inner_first(_nodes_by_name(model, form.kept_nodes)))


def scaling_nodes(model: ir.Model, evidence_by_name: Mapping[str, Evidence]) -> frozenset[ir.Node]:
    """Return the producers of a loss scale: folding scale and seed into one constant would make them
    indistinguishable.
    """
    names = {name for name, evidence in evidence_by_name.items() if evidence.reason is Reason.SCALING}
    nodes = traversal.every_node(model.graph) if names else ()
    return frozenset(node for node in nodes if any(value.name in names for value in node.outputs))


def _nodes_by_name(model: ir.Model, patterns: Iterable[str]) -> set[ir.Node]:
    """Return the nodes that match a pattern; an invalid one matches none: pins reject it (colouring.pins)."""
    names = {node: pinned_as(node) for node in traversal.every_node(model.graph)}
    selection: set[ir.Node] = set()
    for pattern in patterns:
        try:
            matches = matcher(pattern, "", names.values())
        except OptionError:
            continue
        selection |= {node for node, name in names.items() if matches(name)}
    return selection


class FormChangeKind(enum.Enum):
    """The kind of a rewrite that preserves the model's semantics.

    OPSET_RAISED, OPSET_SET: the opset, from `before` to `after`, the latter as asked. FOLDED: a constant
    node was computed. MERGED: a BatchNormalization was folded into the weights of `into`. MAX_AND_MIN: a
    Clip became a Max and a Min. RECIPROCAL: a Reciprocal became a division. SQUARE: a product of a value
    with itself became a Pow. RANK: a constant weight took the rank of the data, from `before` to `after`.
    """

    OPSET_RAISED = "opset raised"
    OPSET_SET = "opset set"
    FOLDED = "folded"
    MERGED = "merged"
    MAX_AND_MIN = "max and min"
    RECIPROCAL = "reciprocal"
    SQUARE = "square"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class FormChange:
    """A rewrite of one node, or of the whole model.

    `node` is the name by which a user pins it (policy.node_patterns.pinned_as), empty for the whole model;
    `into` names the node that replaces it. `before` and `after` are numbers that changed.
    """

    kind: FormChangeKind
    node: str = ""
    into: str = ""
    before: int = 0
    after: int = 0
