"""The nodes whose form a user decides: those that a pin or a list names, and what stands in their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from amp_rewrite.errors import OptionError
from amp_rewrite.model import traversal
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy.evidence import Evidence, Reason
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.node_patterns import matcher, pinned_as


def find(model: ir.Model, form: Form) -> frozenset[ir.Node]:
    """The nodes that keep their form: pinned by name or pattern, or of an operator that the user moved to
    another list.
    """
    if not form.kept_operators:
        return pinned(model, form)
    listed = {node for node in _nodes(model) if (node.domain, node.op_type) in form.kept_operators}
    return pinned(model, form) | listed


def pinned(model: ir.Model, form: Form) -> frozenset[ir.Node]:
    """The nodes that are pinned by name or pattern."""
    return frozenset(_below(_named(_nodes(model), form.kept_nodes)) if form.kept_nodes else ())


def scaling(model: ir.Model, held: Mapping[str, Evidence]) -> frozenset[ir.Node]:
    """The nodes of a loss scale, by the values that they output: a stored product of scale and seed would no
    longer tell the two apart.
    """
    names = {name for name, evidence in held.items() if evidence.reason is Reason.SCALING}
    nodes = _nodes(model) if names else ()
    return frozenset(node for node in nodes if any(value.name in names for value in node.outputs))


def _nodes(model: ir.Model) -> list[ir.Node]:
    return [node for held in traversal.nodes(model.graph).values() for node in held]


def _named(nodes: list[ir.Node], patterns: Iterable[str]) -> set[ir.Node]:
    """A pattern that is not valid names nothing here: pins refuse it (colouring.pins)."""
    names = {node: pinned_as(node) for node in nodes}
    found: set[ir.Node] = set()
    for pattern in patterns:
        try:
            matches = matcher(pattern, "", names.values())
        except OptionError:
            continue
        found |= {node for node, name in names.items() if matches(name)}
    return found


def _below(named: set[ir.Node]) -> set[ir.Node]:
    """These nodes and all in their bodies."""
    found, waiting = set[ir.Node](), [*named]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(inner for body in control_flow.bodies(node) for inner in body)
    return found
