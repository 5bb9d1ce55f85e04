"""Pins: the nodes that they name, and the decisive one of several that name a node or those around it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.errors import OptionError, PinError
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.policy.entries import Entry
from amp_rewrite.policy.evidence import in_words
from amp_rewrite.policy.node_patterns import matcher, pinned_as
from amp_rewrite.policy.options import Pins

OPERATORS = "only_op"
"""The field of Pins that has names of operators."""

Nodes = tuple[ir.Node, ...]
Around = Mapping[ir.Node, Nodes]
"""The chain of enclosing nodes of every node: outermost first, itself last."""


def around(graph: ir.Graph, outer: Nodes = ()) -> Iterator[tuple[ir.Node, Nodes]]:
    """Yield every node of a graph and of nested graphs, with its enclosing nodes."""
    for node in graph:
        yield node, (*outer, node)
        for body in control_flow.bodies(node):
            yield from around(body, (*outer, node))


def pinnable(graph: UnitGraph) -> set[str]:
    """Return the names of nodes that pins can match."""
    return set(map(pinned_as, with_units(graph, dict(around(graph.root))))) - {""}


def with_units(graph: UnitGraph, nested: Around) -> Mapping[ir.Node, None]:
    """Return the nodes with units, and the nodes around these."""
    return {node: None for unit in graph.units for node in nested[unit.node]}


def matching(names: Mapping[ir.Node, str], pattern: str, by: str) -> set[ir.Node]:
    """Return the nodes that a pattern in the field `by` of Pins names, or those of an operator there; `names`
    are those of the nodes in that field.

    Raises OptionError for an invalid pattern.
    """
    is_plain = by == OPERATORS
    matches = pattern.__eq__ if is_plain else matcher(pattern, f"`Pins.{by}`", set(names.values()))
    return {node for node, name in names.items() if matches(name)}


def names_in(nodes: Iterable[ir.Node], by: str) -> Mapping[ir.Node, str]:
    """Return the names of nodes that patterns in the field `by` of Pins match."""
    if by == OPERATORS:
        return {node: schema.written(node.domain, node.op_type) for node in nodes}
    return {node: pinned_as(node) for node in nodes}


@dataclass(frozen=True, slots=True)
class Ruling:
    """The ruling of a pin on a unit: its pattern, and its direction (half if `forces`, else float32)."""

    pattern: str
    forces: bool


def rulings(
    graph: UnitGraph, pins: Pins, entries: Sequence[Entry], free: Sequence[int]
) -> Mapping[int, Ruling]:
    """Return the rulings on the units that are `free` to be decided; `entries` give the reasons of others.

    Raises PinError for pins that match no node, or that force half where no schema allows it, and OptionError
    for those that contradict each other.
    """
    if not (pins.keep_full or pins.force_half):
        return {}
    claims = _claims(graph, pins, "keep_full", "force_half")
    _refuse_unable(claims["force_half"], entries, free)
    keeping, forcing = _closest(claims["keep_full"]), _closest(claims["force_half"])
    decided = ((unit, _ruling(keeping.get(unit), forcing.get(unit))) for unit in free)
    return {unit: ruling for unit, ruling in decided if ruling is not None}


def restricted_units(graph: UnitGraph, pins: Pins) -> Mapping[int, str]:
    """Return the units to which the pins restrict half, each with its pattern or operator.

    Raises PinError for those that match no node.
    """
    by_field = _claims(graph, pins, "only", OPERATORS)
    patterns = (*by_field["only"], *by_field[OPERATORS])
    return {unit: claim.pattern for claims in patterns for unit, claim in claims.items()}


def _ruling(keep: _Claim | None, force: _Claim | None) -> Ruling | None:
    if keep and force and keep.closeness == force.closeness:
        raise _contradiction(keep, force)
    if force and not (keep and keep.closeness > force.closeness):
        return Ruling(force.pattern, forces=True)
    return Ruling(keep.pattern, forces=False) if keep else None


@dataclass(frozen=True, slots=True)
class _Claim:
    """The claim of a pattern on a unit: by the name of its node, or of a node around it.

    A claim by an inner node is closer to the unit, and an exact name closer than an expression.
    """

    pattern: str
    node: ir.Node
    depth: int

    @property
    def closeness(self) -> tuple[int, bool]:
        name = pinned_as(self.node)
        return self.depth, self.pattern in (name, re.escape(name))


_Claims = Mapping[int, _Claim]
"""The claims of patterns, by the position of the unit."""


def _closest(candidates: Iterable[_Claims]) -> _Claims:
    """Return the closest claim on each unit; of several the last."""
    closest: dict[int, _Claim] = {}
    for claims in candidates:
        for unit, claim in claims.items():
            if claim.closeness >= closest.setdefault(unit, claim).closeness:
                closest[unit] = claim
    return closest


def _refuse_unable(to_force: Sequence[_Claims], entries: Sequence[Entry], free: Sequence[int]) -> None:
    unable = [next(iter(claims.items())) for claims in to_force if claims.keys().isdisjoint(free)]
    if unable:
        unit, claim = unable[0]
        raise PinError(
            f"`Pins.force_half` {claim.pattern}: {in_words(entries[unit].evidence)}",
            [each.pattern for _, each in unable],
            remedy="leave the node in float32",
        )


def _contradiction(keep: _Claim, force: _Claim) -> OptionError:
    return OptionError(
        f"`Pins.keep_full` {keep.pattern} and `Pins.force_half` {force.pattern} "
        f"both match node '{pinned_as(keep.node)}'",
        remedy="leave one out; a node's own name is an exception to an expression that matches it",
    )


def _instead(pattern: str, names: Sequence[str]) -> str:
    """Suggest a replacement for a pattern that matches no name."""
    part = pattern.replace(".*", "").strip("*")
    inside = [name for name in names if part and part.lower() in name.lower()]
    if inside and not difflib.get_close_matches(pattern, names, n=1, cutoff=_A_SLIP):
        match = re.search(re.escape(part), inside[0], re.IGNORECASE)
        example = f".*{re.escape(match[0]) if match else part}.*"
        return f"a regular expression matches a whole name: {example} matches {', '.join(inside[:3])}"
    return _near(pattern, names)


def _near(pattern: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(pattern, names, n=3)
    return f"did you mean {' or '.join(near)}?" if near else "see `amp-rewrite explain`"


_A_SLIP = 0.9
"""The similarity (difflib's ratio) at which a pattern counts as a typo of a name."""


def _claims(graph: UnitGraph, pins: Pins, *fields: str) -> Mapping[str, Sequence[_Claims]]:
    """Return the claims of the patterns in fields of Pins, by field: on the units of the nodes that a pattern
    names, and of all nodes in their bodies. Raises PinError for those that claim none.
    """
    nested = dict(around(graph.root))
    nodes = with_units(graph, nested)
    claims: dict[str, list[_Claims]] = {field: [] for field in fields}
    unmatched: list[tuple[str, str]] = []
    names_by_field = {field: names_in(nodes, field) for field in fields}
    for by, pattern in ((field, pattern) for field in fields for pattern in getattr(pins, field)):
        matches, on_units = matching(names_by_field[by], pattern, by), dict[int, _Claim]()
        for unit in graph.units:
            for depth, node in enumerate(nested[unit.node]):
                if node in matches:
                    on_units[unit.index] = _Claim(pattern, node, depth)
        claims[by].append(on_units)
        if not on_units:
            unmatched.append((by, pattern))
    if unmatched:
        by, pattern = unmatched[0]
        suggest = _near if by == OPERATORS else _instead
        raise PinError(
            f"{', '.join(f'`Pins.{field}` {each}' for field, each in unmatched)} "
            f"match{'es' if len(unmatched) == 1 else ''} no node that computes in float32",
            [each for _, each in unmatched],
            remedy=suggest(pattern, sorted(set(names_by_field[by].values()))),
        )
    return claims
