"""What a user could say to change what was decided for one node: each flag was tried before it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from amp_rewrite.colouring import pin_patterns as naming
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.explaining import suggestions
from amp_rewrite.explaining.causes import Change, RootCause
from amp_rewrite.explaining.suggestions import Subject
from amp_rewrite.policy import node_patterns


@dataclass(frozen=True, slots=True)
class NodeRemedy:
    """What changes the colour of a unit.

    `cause` is what holds it in float32, with what frees it among others; None for a unit that is half, or
    that no other could be. `pin` changes the colour of its node alone; None where no pin does.
    """

    cause: RootCause | None
    pin: Change | None


def of_unit(unit: int, causes: Iterable[RootCause], subject: Subject) -> NodeRemedy:
    """What changes the colour of a unit, one of those that were decided."""
    node = subject.graph.units[unit].node
    holding = next((cause for cause in causes if node in cause.nodes), None)
    freeing = holding and suggestions.freeing(holding, node, subject)
    return NodeRemedy(None if subject.painting.is_half(unit) else freeing, _pin(unit, subject))


def _pin(unit: int, subject: Subject) -> Change | None:
    """The pin that gives the unit the other colour."""
    graph, before = subject.graph, subject.painting
    name = node_patterns.pinned_as(graph.units[unit].node)
    option = "keep_full" if before.is_half(unit) else "force_half"
    pattern = node_patterns.pattern_for(name, naming.pinnable(graph)) if name else ""
    pins = subject.options.pins
    pinned = replace(pins, **{option: (*getattr(pins, option), pattern)})
    try:
        after = subject.again(replace(subject.options, pins=pinned)) if name else before
    except AmpRewriteError:  # no schema allows it, or another pin says otherwise
        return None
    return Change(option, pattern) if after.is_half(unit) is not before.is_half(unit) else None
