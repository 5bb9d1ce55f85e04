"""Preparation of a model for analysis: functions inlined, fused operators decomposed, CastLikes made Casts,
redundant Casts bypassed, ranks of weights behind a Transpose raised.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model import graph_edits, inlining, traversal
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.onnx_types.schema import BLOCKED
from amp_rewrite.policy.evidence import Evidence
from amp_rewrite.policy.options import Form
from amp_rewrite.preparing import (
    batch_norm_folding,
    constant_folding,
    form_changes,
    operator_forms,
    opset_raising,
    transposed_operands,
    value_shapes,
)
from amp_rewrite.preparing.form_changes import FormChange
from amp_rewrite.preparing.opset_raising import NewerOpset
from amp_rewrite.text import plural

# Casts from float32 to float32 are bypassed, and every CastLike of a known type becomes a Cast.


def bypass_casts(nodes: Iterable[ir.Node], types: Types, dtype: ir.DataType = ir.DataType.FLOAT) -> int:
    """Remove Casts from a type to itself among these nodes, and return their number.

    Some exporters write those of float32, which block fusions; a rewrite leaves those of half where a model
    is half in part.

    One that produces an output of the model or of a body stays.
    """
    sources: dict[ir.Value, ir.Value] = {}
    idle = [*_idle(nodes, types, ir.TensorType(dtype))]
    for node in idle:
        value = node.inputs[0]
        assert value is not None, "an idle Cast reads something"
        sources[node.outputs[0]] = sources.get(value, value)  # in a chain of Casts, the first operand
    graph_edits.replace_uses(sources)
    graph_edits.remove(idle)
    return len(idle)


def _idle(nodes: Iterable[ir.Node], types: Types, kind: ir.TensorType) -> Iterator[ir.Node]:
    for node in nodes:
        if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            continue
        output = node.outputs[0]
        if not output.is_graph_output() and types.get(node.inputs[0]) == kind == types.get(output):
            yield node


def _write_casts(model: ir.Model) -> None:
    """Replace CastLikes by Casts in place, without those between constants and their consumers; values keep
    their names.

    Functions that onnxscript generates give their constants the type of an argument this way. A CastLike
    reads its second input for the type alone: that input would be cast for it, and its output would not be
    recognised as a constant.
    """
    types = element_types.infer(model)
    for node in traversal.every_node(model.graph):
        if node.op_type == "CastLike" and not node.domain:
            _write(node, types)
    bypass_casts(traversal.every_node(model.graph), types)


def _write(node: ir.Node, types: Types) -> None:
    value, like = node.inputs
    like_type = None if like is None else types.get(like)
    if isinstance(like_type, ir.TensorType) and value is not None:
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.attributes["to"] = ir.AttrInt64("to", like_type.dtype)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared model with the requested form, the types of its values, the changes made, and warnings.

    `newer` is the opset that the user could ask for, and `on_cpu` are the nodes without kernels at the one
    that was asked for. `constant_inputs` counts the inputs with a default that became constants.
    """

    model: ir.Model
    form: Form
    types: Types
    changes: tuple[FormChange, ...]
    warnings: tuple[str, ...]
    constant_inputs: int
    newer: NewerOpset | None = None
    on_cpu: frozenset[ir.Node] = frozenset()


def prepare(model: ir.Model, form: Form, held: Mapping[str, Evidence]) -> Prepared:
    """Prepare `model` in place, preserving its semantics; `held` maps names of values to evidence."""
    warnings = _settle_functions(model, form)
    constant_inputs = 0 if form.keep_overridable else _settle_inputs(model)
    changes: list[FormChange] = []
    nodes = traversal.nodes(model.graph).values()
    operators = {node.op_type for inner in nodes for node in inner}
    warnings += (_FOR_A_CPU,) if any(node.domain == BLOCKED for inner in nodes for node in inner) else ()
    if "FusedConv" in operators:
        operator_forms.decompose_fused_convs(model, form.target, form.half)
        operators = {node.op_type for node in traversal.every_node(model.graph)}
    if "CastLike" in operators:
        _write_casts(model)
    raised, newer = opset_raising.raise_opset(model, form)
    changes += raised
    exclusions = form_changes.nodes_to_preserve(model, form)
    if form.fold:
        changes += _folded(model, form, held, exclusions, operators)
    if form.idioms:
        changes += operator_forms.rewrite_norms(model, exclusions)
    if "Clip" in operators:
        changes += operator_forms.rewrite_clips(model, form)
    types = element_types.infer(model)
    if "Cast" in operators:
        bypass_casts(traversal.every_node(model.graph), types)
    value_shapes.infer_shapes(model, types)
    if "Transpose" in operators and form.target.is_onnxruntime:
        changes += transposed_operands.raise_ranks(model, types)
    on_cpu = opset_raising.without_kernels(model, form, changes)
    warnings += _of_lost_kernels(on_cpu, form)
    return Prepared(model, form, types, tuple(changes), warnings, constant_inputs, newer, on_cpu)


def _of_lost_kernels(nodes: Collection[ir.Node], form: Form) -> tuple[str, ...]:
    """Return a warning if nodes have no kernel on the target at the opset that was asked for."""
    if not nodes:
        return ()
    operators = ", ".join(sorted({node.op_type for node in nodes}))
    what = f"no kernel at `Options.opset` {form.opset} for {plural(len(nodes), 'node')} ({operators})"
    where = "what has none runs on the CPU, behind copies that the predicted speed counts"
    return (f"{form.target.name} has {what}: {where}",)


def _folded(
    model: ir.Model,
    form: Form,
    evidence_by_name: Mapping[str, Evidence],
    exclusions: Container[ir.Node],
    operators: Container[str],
) -> Iterator[FormChange]:
    yield from constant_folding.fold_constants(
        model,
        form_changes.pinned_nodes(model, form) | form_changes.scaling_nodes(model, evidence_by_name),
        biases=form.target.is_strict,  # TensorRT's DequantizeLinear has 8 bits at most
    )
    if "BatchNormalization" in operators:
        yield from batch_norm_folding.fold(model, form.half, exclusions)


_FOR_A_CPU = (
    "onnxruntime optimised this model for a CPU: what has channels in blocks (com.microsoft.nchwc) runs "
    "nowhere else, and in float32; rewrite the model from before that, or save it at ORT_ENABLE_EXTENDED"
)


def _settle_functions(model: ir.Model, form: Form) -> tuple[str, ...]:
    """Inline the functions of a model, or return a warning that they stay."""
    if not form.keep_functions:
        return tuple(filter(None, [inlining.inline(model)]))
    count = len(model.functions)
    noun = "function" if count == 1 else "functions"
    return (f"{count} model-local {noun} kept, in float32",) if count else ()


def _settle_inputs(model: ir.Model) -> int:
    """Make constants of the inputs that have a default, which are weights in most models; return their
    number. No runtime folds what a caller may override, and it would be cast in every run.
    """
    inputs = model.graph.inputs
    count = len(inputs)
    if model.ir_version >= CONSTANT_INPUTS_BELOW:
        inputs[:] = [value for value in inputs if not value.is_initializer()]
    return count - len(inputs)
