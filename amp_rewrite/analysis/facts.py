"""The facts about a model before any decision: units, constants, and the evidence from both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

import onnx_ir as ir

from amp_rewrite.analysis import (
    accumulators,
    flows,
    long_sums,
    observed,
    outputs,
    ranges,
    runtimes,
    unit_building,
)
from amp_rewrite.analysis.idioms import marking
from amp_rewrite.analysis.observed import Held, Seen
from amp_rewrite.analysis.outputs import ImpreciseOutputs
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.errors import EXPORT_AGAIN
from amp_rewrite.model import constants
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.policy.evidence import Authority, Evidence, Reason, in_words
from amp_rewrite.policy.options import Options
from amp_rewrite.preparing import value_shapes
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.text import plural


@dataclass(frozen=True, slots=True)
class Facts:
    """The units of a model, its float32 constants, and their fit into half.

    `findings` are the evidence for float32 by unit; of several, that of the highest authority. `freed` are
    units that a shipped list denies and that are proven in range, with the proof. `old_opset` is the reason
    why nothing in the model can change, None where it can, and `remedy` what would help.
    """

    graph: UnitGraph
    constants: Mapping[ir.Value, StoredTensor]
    ranges: ranges.Ranges
    findings: Mapping[int, Evidence]
    old_opset: Evidence | None
    freed: Mapping[int, Evidence] = field(default_factory=dict[int, Evidence])
    remedy: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the model for the user."""
        old = f"{in_words(self.old_opset)}: nothing can change" if self.old_opset is not None else ""
        return (*_of_nan(self.constants, self.ranges.fits), *([f"{old}; {self.remedy}"] if old else []))


def _of_nan(stored: Mapping[ir.Value, StoredTensor], fits: Mapping[ir.Value, Fit]) -> Iterator[str]:
    """Yield a warning that names the weights with NaN; a single number may be meant so."""
    lost = [value for value in stored if value in fits and fits[value].nan]
    names = [value.name or "" for value in lost if prod(constants.dims(stored[value].tensor)) > 1]
    if names:
        more = f" and {plural(len(names) - 1, 'other weight')}" if names[1:] else ""
        yield f"NaN is in the weight '{names[0]}'{more}, and spreads to what reads it; {EXPORT_AGAIN}"


def gather(
    prepared: Prepared,
    options: Options,
    observations: Seen,
    imprecise_outputs: ImpreciseOutputs,
    pinned: Held = MappingProxyType({}),
) -> Facts:
    """Return the facts about a prepared model; `observations` are the extremes of its values in runs,
    `imprecise_outputs` the errors of its imprecise outputs, and `pinned` the nodes that a caller pins to
    float32, by output.

    Raises OptionError when `observations` or `imprecise_outputs` belong to another model, or `options.dims`
    names a dimension that is not open.
    """
    model = prepared.model
    observed.refuse_foreign(model.graph, observations)
    outputs.refuse_foreign(model.graph, imprecise_outputs)
    graph = _build_graph(prepared, options)
    tensors = constants.find(model)
    value_ranges = ranges.check(graph, tensors, options.half)
    old = _old_opset(model.graph, options.half)
    findings = (
        _findings(graph, value_ranges, options, observations, imprecise_outputs, pinned)
        if old is None
        else {unit.index: old for unit in graph.units}
    )
    remedy = "" if old is None else _newer_opset(prepared, options)
    return Facts(graph, tensors, value_ranges, findings, old, remedy=remedy)


def _newer_opset(prepared: Prepared, options: Options) -> str:
    """Return what helps where the opset has no half."""
    if prepared.newer is not None:
        there = f"{options.target.name} has {prepared.newer.loss} there"
        return f"at `Options.opset` {prepared.newer.version} it can, but {there}"
    if prepared.form.raise_opset:
        return f"export it at opset {schema.first_opset_with(options.half)} or newer"
    return "`Options.opset` sets a newer one"


def _build_graph(prepared: Prepared, options: Options) -> UnitGraph:
    model, types = prepared.model, prepared.types
    graph = unit_building.build(model, types, options.target, options.half)
    graph = replace(graph, sized=value_shapes.sized(model, types, options.dims.dims), on_cpu=prepared.on_cpu)
    return marking.mark(graph, options) if prepared.form.idioms else graph


def _old_opset(root: ir.Graph, half: Half) -> Evidence | None:
    """Return the reason why nothing in a model can change, an opset without Cast to half; or None."""
    version, least = element_types.default_opset(root.opset_imports), schema.first_opset_with(half)
    if version >= least:
        return None
    return Evidence(Authority.SCHEMA, Reason.OPSET_WITHOUT_HALF, number=version, limit=least, half=half.name)


def _findings(
    graph: UnitGraph,
    value_ranges: ranges.Ranges,
    options: Options,
    observations: Seen,
    imprecise_outputs: ImpreciseOutputs,
    pinned: Held,
) -> Mapping[int, Evidence]:
    return strongest(
        observed.pinned_units(graph, pinned),
        runtimes.faults(graph) if options.target.is_onnxruntime else {},
        runtimes.quantised(graph, options, value_ranges.findings),
        observed.check(graph, observations, value_ranges, options.half),
        outputs.find_imprecise_outputs(graph, imprecise_outputs, options),
        runtimes.refused(graph, options.target, options.half),
        runtimes.overlong(graph, options.target),
        *(() if options.only_lists else _of_numbers(graph, value_ranges, options)),
        outputs.final_softmaxes(graph) if options.keep_softmax else {},
    )


def strongest(*findings: Mapping[int, Evidence]) -> Mapping[int, Evidence]:
    """Return the evidence of the highest authority on each unit; of several the first."""
    merged: dict[int, Evidence] = {}
    for unit, evidence in (entry for each in findings for entry in each.items()):
        if unit not in merged or evidence.authority.outranks(merged[unit].authority):
            merged[unit] = evidence
    return merged


def _of_numbers(
    graph: UnitGraph, value_ranges: ranges.Ranges, options: Options
) -> tuple[Mapping[int, Evidence], ...]:
    """Return the findings on what half makes of numbers."""
    return (
        value_ranges.findings,
        flows.check(graph, value_ranges.fits, options.half),
        accumulators.check(graph),
        long_sums.check(graph, options),
    )
