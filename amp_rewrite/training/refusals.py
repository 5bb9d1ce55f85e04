"""What is refused of train steps: operators that no runtime has, and gradients that no scale reaches."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.errors import ModelError, SpecError
from amp_rewrite.model import traversal
from amp_rewrite.training import parts
from amp_rewrite.training.dataflow import Dataflow
from amp_rewrite.training.linearity import Linearity
from amp_rewrite.training.parts import Parts
from amp_rewrite.training.spec import TrainSpec
from amp_rewrite.training.state_pairs import listed

_PREVIEW = "ai.onnx.preview.training"


def refuse_unknown(model: ir.Model) -> None:
    """SpecError for operators of ai.onnx.preview.training."""
    found = {node.op_type for node in traversal.every_node(model.graph) if node.domain == _PREVIEW}
    if found:
        raise SpecError(
            f"{', '.join(sorted(found))} of {_PREVIEW}: no runtime has these operators",
            remedy="export gradients and optimiser as ordinary operators (docs/training.md)",
        )


_ARTEFACTS = frozenset(
    "InPlaceAccumulatorV2 InPlaceAccumulator SoftmaxCrossEntropyLossGrad ReluGrad ConvGrad GatherGrad "
    "LayerNormalizationGrad SoftmaxGrad SoftmaxGrad_13 GeluGrad BiasGeluGrad_dX AdamWOptimizer YieldOp "
    "SGDOptimizerV2".split()
)


def refuse_artefact(model: ir.Model) -> None:
    """ModelError for what onnxruntime-training's generate_artifacts makes."""
    nodes = traversal.every_node(model.graph)
    made = {node.op_type for node in nodes if node.domain == "com.microsoft" and node.op_type in _ARTEFACTS}
    lazy = any(value.name == "lazy_reset_grad" for value in model.graph.inputs)
    if made or lazy:
        what = ", ".join(sorted(made)) or "lazy_reset_grad"
        raise ModelError(
            f"an artefact of onnxruntime-training ({what}): its gradient operators have no half kernels, and "
            "only onnxruntime-training 1.19.2, which is no longer maintained, runs it",
            remedy="export a plain train step (docs/training.md); insert_loss_scale works on artefacts too",
        )


def refuse_unscaled(
    found: Linearity, flow: Dataflow, divided: Parts, gradients: Sequence[ir.Value], spec: TrainSpec
) -> None:
    """SpecError for a gradient that a scale of the seed does not reach: it would underflow in half."""
    if not found.frontier:
        raise SpecError(
            f"nothing reads what is linear in the seed '{spec.seed}': there are no gradients",
            remedy="name another seed, or leave it to analysis",
        )
    linear = set(found.values)
    missed = [value.name or "" for value in gradients if value not in linear]
    if missed:
        raise SpecError(
            f"the gradients {listed(missed)} are not linear in the seed '{spec.seed}', and would stay "
            "unscaled: a second loss, or an operator that is not known to be linear, is on the way",
            remedy="name another seed, or the gradients that are linear in it",
        )
    outside = [value.name or "" for value in parts.unscaled(flow, divided, found)]
    if outside and not gradients:
        raise SpecError(
            f"{listed(outside)} reach the state without the scale of the seed '{spec.seed}': a second loss "
            "has a seed of its own, or an operator that is not known to be linear is on the way",
            remedy="give both losses one seed, or name the gradients to scale",
        )
