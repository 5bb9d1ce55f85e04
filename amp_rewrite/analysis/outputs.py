"""Outputs that half stores badly however accurately they are computed, and softmaxes that a policy keeps.

    y = Add(z, 1000)        where y varies by 0.1: float16 is spaced by 0.5 there

What makes such an output, after the last products, is float32 where the output may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from amp_rewrite.analysis import states
from amp_rewrite.analysis.units import UnitGraph, read_by
from amp_rewrite.errors import OptionError
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.traversal import reach
from amp_rewrite.numerics.half import Half
from amp_rewrite.operators.catalogue import MOVERS
from amp_rewrite.operators.record import Move, Trait
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Options

ImpreciseOutputs = Mapping[str, float]
"""Outputs of a model, each with the error of rounding it to half, relative to its scale."""

MOST = 16
"""Maximum number of units at the end of a graph: a longer path from its last products does not count."""


def imprecision_limit(half: Half) -> float:
    """Return the rounding error of an output above which it is imprecise: 9.8e-4 for float16.

    That is twice half's unit roundoff, the upper bound of the rounding error of normal numbers; above it,
    most elements of the output are subnormal.
    """
    return 2 / half.integers


def refuse_foreign(graph: ir.Graph, imprecise_outputs: ImpreciseOutputs) -> None:
    """Raise OptionError for an output that the model does not have; `name[0]` is an element of a sequence."""
    outputs = [value.name for value in graph.outputs if value.name]
    for name in imprecise_outputs:
        if name not in outputs and not any(name.startswith(f"{output}[") for output in outputs):
            raise OptionError(
                f"the model has no output '{name}'", where="imprecise_outputs", remedy="name its outputs"
            )


def find_imprecise_outputs(
    graph: UnitGraph, imprecise_outputs: ImpreciseOutputs, options: Options
) -> dict[int, Evidence]:
    """Return the units from the last products, reductions and norms before each output to the output itself.

    Outputs that are half themselves are excluded. The operators between work element by element, and preserve
    the rounding errors of their inputs; a product sums with more precision than it stores.
    """
    evidence_by_unit: dict[int, Evidence] = {}
    halved = states.half_names(states.borders(graph.root, graph.types), options)
    for output in graph.root.outputs:
        cost = imprecise_outputs.get(output.name or "")
        if cost is None or output.name in halved:
            continue
        evidence = Evidence(
            Authority.OBSERVATION,
            Reason.IMPRECISE_OUTPUT,
            subject=output.name or "",
            number=cost,
            limit=imprecision_limit(options.half),
            half=options.half.name,
        )
        evidence_by_unit |= dict.fromkeys(_end(graph, output), evidence)
    return evidence_by_unit


def _end(graph: UnitGraph, output: ir.Value) -> Collection[int]:
    """Return the units from the last products before an output to the output; none if too many."""

    def before(unit: int) -> Iterable[int]:
        """Return the units whose errors each element of the unit's output inherits."""
        record = record_of(graph.units[unit].node)
        is_local = record.traits & (Trait.ELEMENTWISE | Trait.POOLS)
        inherits = is_local or record.move not in (None, Move.CONTROLS)
        return graph.producers(read_by(graph, unit)) if inherits else ()

    units = reach(graph.producers([output]), before)
    return units if len(units) <= MOST else ()


def final_softmaxes(graph: UnitGraph) -> Mapping[int, Evidence]:
    """Return the units of softmaxes whose results reach an output of the model, at most moved on the way."""

    def before(unit: int) -> Iterable[int]:
        node = graph.units[unit].node
        return graph.producers(read_by(graph, unit)) if node.op_type in MOVERS and not node.domain else ()

    def is_softmax(unit: int) -> bool:
        traits = record_of(graph.units[unit].node).traits
        return bool(traits & Trait.SOFTMAX) and not traits & Trait.MULTIPLIES

    softmaxes: dict[int, Evidence] = {}
    for output in graph.root.outputs:
        evidence = Evidence(Authority.POLICY, Reason.FINAL_SOFTMAX, subject=output.name or "")
        ends = reach(graph.producers([output]), before)
        softmaxes |= dict.fromkeys(filter(is_softmax, ends), evidence)
    return softmaxes
