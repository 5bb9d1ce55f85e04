"""Decisions by bounds: units declared to overflow stay float32, and units proven in range are not denied.

    Exp(x - ReduceMax(x))             its argument is at most 0: half is safe, though lists deny an Exp
    Mul(x, x)                         the same where x is at most 250, as squares end at 65,504
    an input declared to reach 1e6    its readers stay float32

Bounds hold for every input, within the declared ranges; samples of the user's data free the same operators
where all values around them stay below a sixteenth of half's largest number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts, strongest
from amp_rewrite.analysis.observed import HEADROOM, Seen
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import read_by
from amp_rewrite.bounds import bounding
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.given import Source
from amp_rewrite.model import patterns, traversal
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.operators.catalogue import MOVERS
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Level, Options

_POWER = 250.0**2
"""The largest proven power: 250 squared; half overflows at 255.9 squared."""
_LARGEST_DEGREE = 4.0


def range_candidates(facts: Facts, options: Options) -> Iterator[int]:
    """Yield the units of operators that the lists for float16 deny for their range alone, which are no part
    of an idiom, and which no finding keeps in float32; none where the options free none.
    """
    is_default = options.half is FLOAT16 and options.level is Level.DEFAULT
    if not (is_default and options.free) or facts.old_opset is not None:
        return
    for unit, node, *_ in facts.graph.units_of("Exp", "Mul", "Pow", "ReduceSum"):
        is_one = node.op_type != "Mul" or (len(node.inputs) == 2 and node.inputs[0] is node.inputs[1])
        if is_one and unit not in facts.findings and unit not in facts.graph.spelled:
            yield unit


def _limit(node: ir.Node, half: Half) -> tuple[ir.Value | None, float]:
    """Return the value of a candidate that must not exceed a number; that of an Exp is harmless up to 0."""
    if node.op_type == "Exp":
        return node.inputs[0], 0.0
    if node.op_type == "ReduceSum":
        return node.outputs[0], half.largest / HEADROOM
    degree = 2.0 if node.op_type == "Mul" else patterns.scalar(node.inputs[1]) or 0.0
    return node.inputs[0], _POWER ** (1 / degree) if 1 <= degree <= _LARGEST_DEGREE else -math.inf


def _prove_in_range(facts: Facts, proven: Proven, options: Options) -> Mapping[int, Evidence]:
    """Return the candidates that fit half for every input, each with the bound that proves it."""
    half, proofs = options.half, dict[int, Evidence]()
    for unit in range_candidates(facts, options):
        value, limit = _limit(facts.graph.units[unit].node, half)
        number = proven.of(value).most if limit else proven.of(value).high
        around = _values_around(facts, unit) if limit else ()
        if number <= limit and all(proven.of(each).most <= half.largest / HEADROOM for each in around):
            name = (value.name or "") if value is not None else ""
            proofs[unit] = Evidence(Authority.PROOF, Reason.PROVEN_IN_RANGE, name, number, limit, half.name)
    return proofs


SPARE = 16.0
"""The factor by which values of the user's samples stay below the limit: other inputs may be larger."""


def free_by_samples(facts: Facts, observed: Seen, options: Options) -> Facts:
    """Return the facts with the candidates freed whose values stayed below half's largest number over SPARE
    in runs on samples of the user, each with the largest of these values.
    """
    half, freed = options.half, dict[int, Evidence]()
    limit = half.largest / SPARE
    for unit in range_candidates(facts, options) if observed else ():
        names = [each.name or "" for each in _values_around(facts, unit) if each not in facts.constants]
        sizes = {name: observed[name].most if name in observed else math.inf for name in names}
        name = max(sizes, key=sizes.__getitem__, default="")
        if name and sizes[name] <= limit:
            reason = Reason.OBSERVED_IN_RANGE
            freed[unit] = Evidence(Authority.PROOF, reason, name, sizes[name], limit, half.name)
    return replace(facts, freed=freed)


def _values_around(facts: Facts, unit: int) -> Iterator[ir.Value]:
    """Yield the operands and results of a unit, and the results of its consumers.

    The consumers are no longer suspect once the unit is in range; consumers behind movers count as well.
    """
    graph = facts.graph
    carriers = reach([unit], graph.successors.__getitem__, lambda at: _moves(graph.units[at].node))
    after = {reader for at in (unit, *carriers) for reader in graph.successors[at]}
    yield from read_by(graph, unit)
    yield from (value for each in (unit, *after) for value in graph.units[each].defs)


def _moves(node: ir.Node) -> bool:
    return effective_op(node) in MOVERS


def _find_overflowing(facts: Facts, proven: Proven, half: Half) -> Mapping[int, Evidence]:
    """Return the units that read an input declared to exceed half, with HEADROOM, or movers of it.

    Results of other operators are bounded from above only, and need not be that large.
    """
    inputs = {value.name: value for value in facts.graph.root.inputs}
    evidence: dict[int, Evidence] = {}
    for each in (each for each in proven.inputs if each.source is Source.DECLARED):
        number = max((end for end in (each.low, each.high) if math.isfinite(end)), key=abs, default=0.0)
        if abs(number) * HEADROOM > half.largest:
            reason, limit = Reason.DECLARED_OVERFLOW, half.largest
            found = Evidence(Authority.RANGE, reason, each.name, number, limit, half.name)
            evidence = (
                dict.fromkeys(_reached(facts, inputs[each.name], proven, limit / HEADROOM), found) | evidence
            )
    masking = facts.ranges.masks.units()
    return {unit: found for unit, found in evidence.items() if unit not in masking}


def _reached(facts: Facts, start: ir.Value, proven: Proven, most: float) -> dict[int, None]:
    """Return the units that read a value, or outputs of movers that may be as large."""
    graph = facts.graph

    def behind(unit: int) -> Iterator[int]:
        mover = graph.units[unit]
        for value in mover.defs if _moves(mover.node) else ():
            if proven.of(value).most > most:
                yield from (reader for reader, _ in graph.uses.get(value, ()))

    return traversal.reach((reader for reader, _ in graph.uses.get(start, ())), behind)


# Whether bounds are needed, and what they decide.


def needs(facts: Facts, options: Options) -> bool:
    """Return True if bounds may decide units of a model: by declared ranges, or for float16, whose lists deny
    operators that may overflow.
    """
    if options.ranges and facts.old_opset is None:
        return True
    return any(True for _ in range_candidates(facts, options)) and bounding.is_quick(facts)


def decide(facts: Facts, proven: Proven, options: Options) -> Facts:
    """Return the facts with the findings that follow from bounds."""
    findings = strongest(facts.findings, _find_overflowing(facts, proven, options.half))
    return replace(facts, findings=findings, freed={**facts.freed, **_prove_in_range(facts, proven, options)})


def count_denied(facts: Facts, halves: Sequence[bool], options: Options) -> int:
    """Count the units that may be float32 for their range alone, which samples may free."""
    return sum(not halves[unit] for unit in range_candidates(facts, options))
