"""What was changed of a model's form before it was analysed, as data."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import OptionError
from amp_rewrite.model import traversal
from amp_rewrite.policy.evidence import Evidence, Reason
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.node_patterns import matcher, pinned_as

# The nodes whose form a user decides: those that a pin or a list names, and what stands in their bodies.


def nodes_to_preserve(model: ir.Model, form: Form) -> frozenset[ir.Node]:
    """The nodes that keep their form: pinned by name or pattern, or of an operator that the user moved to
    another list.
    """
    if not form.kept_operators:
        return pinned_nodes(model, form)
    nodes = traversal.every_node(model.graph)
    listed = {node for node in nodes if (node.domain, node.op_type) in form.kept_operators}
    return pinned_nodes(model, form) | listed


def pinned_nodes(model: ir.Model, form: Form) -> frozenset[ir.Node]:
    """The nodes that are pinned by name or pattern, and all in their bodies."""
    if not form.kept_nodes:
        return frozenset()
    return frozenset(traversal.nodes_inner_first(_named(model, form.kept_nodes)))


def scaling_nodes(model: ir.Model, held: Mapping[str, Evidence]) -> frozenset[ir.Node]:
    """The nodes of a loss scale, by the values that they output: a stored product of scale and seed would no
    longer tell the two apart.
    """
    names = {name for name, evidence in held.items() if evidence.reason is Reason.SCALING}
    nodes = traversal.every_node(model.graph) if names else ()
    return frozenset(node for node in nodes if any(value.name in names for value in node.outputs))


def _named(model: ir.Model, patterns: Iterable[str]) -> set[ir.Node]:
    """A pattern that is not valid names nothing here: pins refuse it (colouring.pins)."""
    names = {node: pinned_as(node) for node in traversal.every_node(model.graph)}
    found: set[ir.Node] = set()
    for pattern in patterns:
        try:
            matches = matcher(pattern, "", names.values())
        except OptionError:
            continue
        found |= {node for node, name in names.items() if matches(name)}
    return found


class FormChangeKind(enum.Enum):
    """What happened to a part of a model; what the model computes stays the same.

    OPSET_RAISED: the opset, from `before` to `after`. FOLDED: a node that depends on stored values alone was
    computed. MERGED: a BatchNormalization went into the weights of `into`. MAX_AND_MIN: a Clip is written so.
    RECIPROCAL: a Reciprocal is written as a division. SQUARE: a product of a value with itself is written as
    its power of 2. RANK: a stored weight took the rank of the data, from `before` to `after`.
    """

    OPSET_RAISED = "opset raised"
    FOLDED = "folded"
    MERGED = "merged"
    MAX_AND_MIN = "max and min"
    RECIPROCAL = "reciprocal"
    SQUARE = "square"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class FormChange:
    """A change of one part of a model's form.

    `node` is the name by which a user finds the part (policy.node_patterns.pinned_as), empty where it is the
    whole model; `into` names the node that does its work now. `before` and `after` are numbers that changed.
    """

    kind: FormChangeKind
    node: str = ""
    into: str = ""
    before: int = 0
    after: int = 0
