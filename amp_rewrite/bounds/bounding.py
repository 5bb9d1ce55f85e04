"""What is proven of a model's values, whatever its inputs hold within their ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.bounds import given, propagation
from amp_rewrite.bounds.bound import Bound, symmetric
from amp_rewrite.bounds.given import InputRange
from amp_rewrite.bounds.known import Known
from amp_rewrite.policy.options import Options


@dataclass(frozen=True, slots=True)
class Proven:
    """The bounds of all values that nodes make; `inputs` are the ranges from which they follow.

    `clamped` are those of the model whose masks are clamped, as the rewrite does it.
    """

    inputs: tuple[InputRange, ...]
    known: Known
    clamped: Known

    def of(self, value: ir.Value | None) -> Bound:
        """The bound of a value in float32."""
        return self.known.of(value)

    def of_clamped(self, value: ir.Value) -> Bound:
        """The bound of a value where masks are clamped."""
        return self.clamped.of(value)


MOST_NODES = 5_000
MOST_WEIGHTS = 1 << 25
"""Sizes up to which a summary has bounds without being asked for them: they take a tenth of a millisecond for
each node, and about a second for 2^26 weights.
"""


def is_quick(facts: Facts) -> bool:
    """Whether a model is so small that its bounds take little of the time of a rewrite."""
    nodes = sum(map(len, facts.graph.nodes.values()))
    return nodes <= MOST_NODES and sum(s.tensor.size for s in facts.constants.values()) <= MOST_WEIGHTS


def find(model: ir.Model, facts: Facts, options: Options) -> Proven:
    """The bounds of a prepared model. Raises OptionError for the range of what is no input of numbers."""
    inputs = given.ranges(model, options.ranges)
    entering, variable = given.bounds(model, inputs), given.variable(model)
    calls = frozenset(model.functions)
    known = propagation.find(facts.graph, entering, variable, options.half, functions=calls)
    return Proven(inputs, known, known)


def with_clamped_masks(model: ir.Model, facts: Facts, options: Options, found: Proven) -> Proven:
    """The same with what is proven where masks are clamped; nothing else where there are none."""
    masks = facts.ranges.masks
    if not masks:
        return found
    entering = given.bounds(model, found.inputs) | dict.fromkeys(masks, symmetric(options.half.fill))
    calls = frozenset(model.functions)
    again = propagation.find(
        facts.graph, entering, found.known.variable, options.half, found.known, functions=calls
    )
    return replace(found, clamped=again)
