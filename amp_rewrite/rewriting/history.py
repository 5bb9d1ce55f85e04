"""The past of a model: declared types, evidence of earlier runs, and values of the other half type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.analysis import states
from amp_rewrite.analysis.observed import Held
from amp_rewrite.errors import ModelError
from amp_rewrite.model import inlining
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.numerics.half import BY_NAME, HALF_TYPES
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.rewriting import annotations, argument_checks, widened_model


@dataclass(frozen=True, slots=True)
class History:
    """The options with the types that the model declares for its operators, the evidence from runs for which
    an earlier rewrite kept values in float32, by their names, and warnings.
    """

    options: Options
    evidence: Held
    warnings: tuple[str, ...]


def settle(source: ModelSource, model: ir.Model, options: Options, *, is_training: bool) -> History:
    """Make of a model, in place, one that is float32 but for what keeps its type, and return its history.

    There is no warning of a train step where the rewrite `is_training`. Raises OptionError for types of
    operators that the model lacks, and ModelError where the types of half values contradict each other.
    """
    options = replace(options, op_types=argument_checks.check_op_types(model, options))
    annotations.declare_types(model, options.op_types)
    evidence = _evidence_of_runs(model)
    warnings = () if is_training else annotations.purpose_warnings(model)
    if widened_model.has_half(model):
        warnings = (*warnings, *_widen_others(source, model, options))
    return History(options, evidence, warnings)


def _evidence_of_runs(model: ir.Model) -> Held:
    """Return the evidence from runs for which an earlier rewrite kept values in float32, by value name.

    A second rewrite may observe no run, so the evidence is carried over. It includes operators that a list
    denied: after a failed comparison, bounds no longer free them. Damaged decisions, of which
    `annotations.update` warns, yield nothing.
    """
    try:
        decided = annotations.read(model)
    except ModelError:
        return {}
    full = (decision for decision in (decided.all if decided else ()) if not decision.is_half)
    return {
        name: decision.evidence
        for decision in full
        if decision.evidence.authority is Authority.OBSERVATION
        or (decision.evidence.authority is Authority.LIST and decision.kind is Kind.DENY)
        for name in decision.outputs
    }


def _widen_others(source: ModelSource, model: ir.Model, options: Options) -> Iterator[str]:
    """Widen values of the other half type to float32, so that the other stages handle the model as any
    float32 model. Inputs and outputs that keep their types are exempt. Yield a warning where there are any.
    """
    if not options.keep_functions:
        inlining.inline(model)
    if conflict := element_types.find(model):
        where = Path(source) if isinstance(source, (str, os.PathLike)) else "the given model"
        restore = f"amp-rewrite restore {where}" if isinstance(where, Path) else "amp_rewrite.restore(model)"
        raise ModelError(f"is not a valid model: {conflict}", where=where, remedy=f"mend it first: {restore}")
    others = HALF_TYPES - {options.half.dtype}
    if widened_model.has_half(model, others):
        borders = states.borders(model.graph, element_types.infer(model))
        kept_io = None if options.io is IOTypes.KEEP else borders.names - states.half_names(borders, options)
        widened_model.widen(model, others, kept_io=kept_io)
        other = next(name for name in BY_NAME if name != options.half.name)
        yield f"the model was already in {other}: its values are rounded a second time"
