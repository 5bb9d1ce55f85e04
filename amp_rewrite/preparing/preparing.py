"""The form in which a model is analysed: functions inlined, fused operators split, CastLikes made Casts, idle
Casts bypassed, ranks of weights behind a Transpose raised.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model import fused_conv_decomposition, inlining, traversal
from amp_rewrite.onnx_types import contrib_schemas, shape_inference
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.evidence import Evidence
from amp_rewrite.policy.form import Form
from amp_rewrite.preparing import (
    batch_norm_folding,
    cast_likes,
    clip_as_max_min,
    constant_folding,
    idle_casts,
    idle_nodes,
    kept_axes,
    kept_nodes,
    negated_terms,
    norm_reciprocals,
    norm_squares,
    opset_raising,
    overridable,
    transposed_weights,
    value_shapes,
)
from amp_rewrite.preparing.form_changes import FormChange


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model in the form in which it is analysed, and the form as it was asked for; the types of its values,
    what was changed for that, and what a user should know.
    """

    model: ir.Model
    form: Form
    types: Types
    changes: tuple[FormChange, ...]
    warnings: tuple[str, ...]


def prepare(model: ir.Model, form: Form, held: Mapping[str, Evidence]) -> Prepared:
    """Changes the form of `model`, and nothing that it computes; `held` is evidence for values by name."""
    warnings = _settle_functions(model, form) + overridable.warnings(model)
    changes: list[FormChange] = []
    nodes = traversal.nodes(model.graph).values()
    operators = {node.op_type for held in nodes for node in held}
    warnings += _of_blocks(node.domain for held in nodes for node in held)
    if "FusedConv" in operators:
        fused_conv_decomposition.decompose(model, form.target, form.half)
    if "CastLike" in operators:
        _settle_casts(model)
    changes += opset_raising.raise_opset(model, form)
    kept = kept_nodes.find(model, form)
    if form.fold:
        changes += _folded(model, form, held, kept, operators)
    changes += _written_otherwise(model, form, kept, operators)
    if "Clip" in operators:
        changes += clip_as_max_min.rewrite(model, form)
    types = shape_inference.types(model)
    if "Cast" in operators:
        idle_casts.bypass(model, types)
    if "Transpose" in operators and form.target.has_faults:
        changes += transposed_weights.raise_ranks(model, types)
    value_shapes.infer(model, types)
    changes += _left_out(model, form, kept, held)
    return Prepared(model, form, types, tuple(changes), warnings)


def _folded(
    model: ir.Model,
    form: Form,
    held: Mapping[str, Evidence],
    kept: Container[ir.Node],
    operators: Container[str],
) -> Iterator[FormChange]:
    yield from constant_folding.fold(model, kept_nodes.pinned(model, form) | kept_nodes.scaling(model, held))
    if "BatchNormalization" in operators:
        yield from batch_norm_folding.fold(model, form.half, kept)


def _written_otherwise(
    model: ir.Model, form: Form, kept: Container[ir.Node], operators: Container[str]
) -> Iterator[FormChange]:
    """What spells one operator as runtimes recognise it, or in fewer nodes."""
    if not form.idioms:
        return
    if "Neg" in operators:
        yield from negated_terms.write(model, kept)
    if "Reciprocal" in operators:
        yield from norm_reciprocals.write(model, kept)
    if "Sqrt" in operators:
        yield from norm_squares.write(model, kept)


def _left_out(
    model: ir.Model, form: Form, kept: Container[ir.Node], held: Container[str]
) -> Iterator[FormChange]:
    """What does nothing, or nothing but give back what the node before drops; last, as shapes are known."""
    if form.idioms:
        yield from idle_nodes.leave_out(model, kept, held)
        yield from kept_axes.keep(model, kept, held)


def _of_blocks(domains: Iterable[str]) -> tuple[str, ...]:
    """That onnxruntime optimised a model for a CPU, if it did."""
    return (_FOR_A_CPU,) if contrib_schemas.BLOCKED in domains else ()


_FOR_A_CPU = (
    "onnxruntime optimised this model for a CPU: what has channels in blocks (com.microsoft.nchwc) runs "
    "nowhere else, and in float32; rewrite the model from before that, or save it at ORT_ENABLE_EXTENDED"
)


def _settle_casts(model: ir.Model) -> None:
    """Has no CastLike stand between a constant and what reads it."""
    types = shape_inference.types(model)
    cast_likes.write_as_casts(model, types)
    idle_casts.bypass(model, types)


def _settle_functions(model: ir.Model, form: Form) -> tuple[str, ...]:
    """Inlines the functions of a model, or says that they are kept."""
    if not form.keep_functions:
        return tuple(filter(None, [inlining.inline(model)]))
    kept = len(model.functions)
    noun = "function" if kept == 1 else "functions"
    return (f"{kept} model-local {noun} kept, in float32",) if kept else ()
