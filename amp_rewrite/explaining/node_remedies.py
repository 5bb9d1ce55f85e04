"""What a user could say to change what was decided for one node: each flag was tried before it is told."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.colouring import pin_patterns as naming
from amp_rewrite.colouring.painting import Painting
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


def of_units(units: Iterable[int], causes: Sequence[RootCause], subject: Subject) -> Iterator[NodeRemedy]:
    """What changes the colour of each unit of those that were decided; what holds of a node is tried once."""
    units_of, before = subject.graph.units, subject.painting

    @functools.cache
    def freeing(node: ir.Node) -> RootCause | None:
        holding = next((cause for cause in causes if node in cause.nodes), None)
        return holding and suggestions.freeing(holding, node, subject)

    @functools.cache
    def pinned(node: ir.Node, *, keep: bool) -> tuple[Change, Painting] | None:
        return _pinned(node, "keep_full" if keep else "force_half", subject)

    for unit in units:
        node, is_half = units_of[unit].node, before.is_half(unit)
        found = pinned(node, keep=is_half)
        changed = found is not None and found[1].is_half(unit) is not is_half
        yield NodeRemedy(None if is_half else freeing(node), found[0] if found and changed else None)


def _pinned(node: ir.Node, option: str, subject: Subject) -> tuple[Change, Painting] | None:
    """A pin of the node, and what becomes of the model with it; None where it has no name, or is refused."""
    name = node_patterns.pinned_as(node)
    if not name:
        return None
    pattern, pins = node_patterns.pattern_for(name, naming.pinnable(subject.graph)), subject.options.pins
    wanted = replace(pins, **{option: (*getattr(pins, option), pattern)})
    try:
        return Change(option, pattern), subject.again(replace(subject.options, pins=wanted))
    except AmpRewriteError:  # no schema allows it, or another pin says otherwise
        return None
