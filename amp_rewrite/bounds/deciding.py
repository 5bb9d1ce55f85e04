"""Decisions by bounds: units declared to overflow stay float32, and units proven tame are not denied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.observed import HEADROOM, Extremes, Seen
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import read_by
from amp_rewrite.bounds import bounding, declared
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.model import patterns
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.model.traversal import varying_values
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.onnx_facts.operators import MOVERS
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Level, Options

# Units that lists deny for their range, and bounds free: exponentials, powers and sums within half.

_POWER = 250.0**2
"""The largest proven power: 250 squared; half overflows at 255.9 squared."""
_DEGREES = (1.0, 4.0)


def tame_candidates(facts: Facts) -> Iterator[int]:
    """Yield the units of operators in _LIMITS that are no part of an idiom, and that no finding keeps in
    float32.
    """
    for operator in _LIMITS:
        for unit in facts.graph.by_operator.get(operator, ()):
            if unit not in facts.findings and unit not in facts.graph.spelled:
                node = facts.graph.units[unit].node
                if not node.domain and (operator != "Mul" or _is_square(node)):
                    yield unit


def _is_square(node: ir.Node) -> bool:
    return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]


def prove_tame(facts: Facts, proven: Proven, half: Half) -> Mapping[int, Evidence]:
    """Return the candidates that fit half for every input, each with the bound that proves it."""
    changing = varying_values(facts.graph.nodes)
    proofs: dict[int, Evidence] = {}
    for unit in tame_candidates(facts):
        node = facts.graph.units[unit].node
        value, limit = _LIMITS[node.op_type](node, half, changing)
        number = proven.of(value).high if node.op_type == "Exp" else proven.of(value).most
        if value is not None and number <= limit and (limit == 0 or _are_within(facts, unit, proven, half)):
            name = value.name or ""
            proofs[unit] = Evidence(Authority.PROOF, Reason.PROVEN_TAME, name, number, limit, half.name)
    return proofs


SPARE = 16.0
"""The factor by which values of the user's samples must stay below the largest number of half: an order of
magnitude more than HEADROOM, as other inputs may be larger.
"""


def find_in_range(facts: Facts, observed: Seen, half: Half) -> Mapping[int, Evidence]:
    """Return the candidates whose values stayed below half's largest number over SPARE in runs on samples of
    the user, each with the largest of these values.
    """
    limit, found = half.largest / SPARE, dict[int, Evidence]()
    for unit in tame_candidates(facts) if observed else ():
        values = [value for value in _values_around(facts, unit) if value not in facts.constants]
        sizes = {value.name or "": observed.get(value.name or "", _UNSEEN).most for value in values}
        name = max(sizes, key=lambda each: sizes[each], default="")
        if name and sizes[name] <= limit:
            reason = Reason.OBSERVED_IN_RANGE
            found[unit] = Evidence(Authority.PROOF, reason, name, sizes[name], limit, half.name)
    return found


_UNSEEN = Extremes(-math.inf, math.inf)


def _are_within(facts: Facts, unit: int, proven: Proven, half: Half) -> bool:
    """Whether the operands of a unit, and the results of its consumers, fit half with HEADROOM."""
    return all(proven.of(value).most <= half.largest / HEADROOM for value in _values_around(facts, unit))


def _values_around(facts: Facts, unit: int) -> Iterator[ir.Value]:
    """Yield the operands and results of a unit, and the results of its consumers.

    The consumers are no longer suspect once the unit is tame; consumers behind movers count as well.
    """
    graph = facts.graph
    carriers = reach([unit], lambda at: graph.successors[at], lambda at: _moves(graph.units[at].node))
    after = {reader for at in (unit, *carriers) for reader in graph.successors[at]}
    yield from read_by(graph, unit)
    yield from (value for each in (unit, *after) for value in graph.units[each].defs)


def _moves(node: ir.Node) -> bool:
    return effective_op(node) in MOVERS


_Changing = set[ir.Value | None]
_Limit = Callable[[ir.Node, Half, _Changing], "tuple[ir.Value | None, float]"]
"""The limit of an operator: the value of a node that must not exceed it, and its number."""


def _exponent(node: ir.Node, half: Half, changing: _Changing) -> tuple[ir.Value | None, float]:
    """Limit the argument: to 0, up to which its relative error is harmless; a stored one by overflow only."""
    value = node.inputs[0]
    return value, 0.0 if value in changing else math.log(half.largest / HEADROOM)


def _base(node: ir.Node, _half: Half, _changing: _Changing) -> tuple[ir.Value | None, float]:
    exponent = 2.0 if node.op_type == "Mul" else patterns.scalar(node.inputs[1])
    least, most = _DEGREES
    is_supported = exponent is not None and least <= exponent <= most
    return (
        (node.inputs[0], _POWER ** (1 / exponent)) if is_supported and exponent is not None else (None, 0.0)
    )


def _total(node: ir.Node, half: Half, _changing: _Changing) -> tuple[ir.Value | None, float]:
    return node.outputs[0], half.largest / HEADROOM


_LIMITS: Mapping[str, _Limit] = {
    "Exp": _exponent,
    "Mul": _base,
    "Pow": _base,
    "ReduceSum": _total,
}


def needs(facts: Facts, options: Options) -> bool:
    """Return True if bounds may decide units of a model: by declared ranges, or for float16, whose lists deny
    operators that may overflow.
    """
    if facts.old_opset is not None:
        return False
    quickly = _frees(options) and bounding.is_quick(facts)
    return bool(options.ranges) or (quickly and any(True for _ in tame_candidates(facts)))


def _frees(options: Options) -> bool:
    return options.free and options.half is FLOAT16 and options.level is Level.DEFAULT


def decided(facts: Facts, root: ir.Graph, proven: Proven, options: Options) -> Facts:
    """Return the facts with the findings that follow from bounds."""
    overflows = declared.find(facts, root, proven, options.half)
    tame = prove_tame(facts, proven, options.half) if _frees(options) else {}
    decisive = {unit: each for unit, each in overflows.items() if _counts(facts, unit, each)}
    return replace(facts, findings={**facts.findings, **decisive}, freed={**facts.freed, **tame})


def freed_by_samples(facts: Facts, observed: Seen, options: Options) -> Facts:
    """Return the facts with the units that samples of the user free."""
    if facts.old_opset is not None or not _frees(options):
        return facts
    return replace(facts, freed=find_in_range(facts, observed, options.half))


def count_denied(facts: Facts, halves: Sequence[bool], options: Options) -> int:
    """Count the units that may be float32 for their range alone, which samples may free."""
    is_open = facts.old_opset is None and _frees(options)
    return sum(not halves[unit] for unit in tame_candidates(facts)) if is_open else 0


def _counts(facts: Facts, unit: int, evidence: Evidence) -> bool:
    own = facts.findings.get(unit)
    return own is None or evidence.authority.outranks(own.authority)
