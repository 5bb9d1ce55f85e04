"""Inserts a loss scale: the seed is multiplied by it, and every gradient by its reciprocal."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import SpecError
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.rewriting.cast_insertion import redirect
from amp_rewrite.training.finding import Step
from amp_rewrite.training.linearity import Linearity
from amp_rewrite.training.node_building import FLOAT, NodeBuilder

DOUBLE = ir.DataType.DOUBLE


@dataclass(frozen=True, slots=True)
class Scaled:
    """The values that a loss scale added: the scaled seed, the product that it is cast from (or itself), and
    the unscaled gradients in float32 (float64 for those that were).
    """

    seed: ir.Value
    product: ir.Value
    gradients: tuple[ir.Value, ...]


def insert(step: Step, scale: ir.Value, reciprocal: ir.Value, build: NodeBuilder) -> Scaled:
    """Multiplies the seed by a scale, and each gradient by its reciprocal, in float32; changes the model."""
    found, types = step.linearity, step.types
    gradients = tuple(_unscaled(found, value, reciprocal, types, build) for value in found.frontier)
    return Scaled(*_scaled_seed(found, scale, types, build), gradients)


def _scaled_seed(
    found: Linearity, scale: ir.Value, types: Types, build: NodeBuilder
) -> tuple[ir.Value, ir.Value]:
    """The seed times the scale, for the nodes that are linear in it, and the product that it is cast from;
    others read the seed as it is.
    """
    made, scaled = _product(found.seed, scale, "scaled", types, build)
    redirect([(found.seed_uses, scaled)])
    return scaled, made


def _unscaled(
    found: Linearity, value: ir.Value, reciprocal: ir.Value, types: Types, build: NodeBuilder
) -> ir.Value:
    """A gradient times the reciprocal of the scale, for its uses that are not linear."""
    made, narrow = _product(value, reciprocal, "unscaled", types, build)
    uses = found.frontier[value]
    redirect([(uses, narrow)])
    if any(use.holder is build.graph for use in uses):
        value.name, narrow.name = narrow.name, value.name
    return made


def _product(
    value: ir.Value, factor: ir.Value, suffix: str, types: Types, build: NodeBuilder
) -> tuple[ir.Value, ir.Value]:
    """A value times a factor in float32, in float64 where it is that, and the same in its own type."""
    dtype = _dtype(types, value)
    wide = DOUBLE if dtype == DOUBLE else FLOAT
    by = build.cast(factor, FLOAT, wide, factor)
    widened = build.cast(value, dtype, wide, value)
    behind = by if widened.producer() is None else widened
    made = build.node(
        "Mul", (widened, by), f"{value.name}__{suffix}", dtype=wide, shape=value.shape, behind=behind
    )
    return made, build.cast(made, wide, dtype, made)


def _dtype(types: Types, value: ir.Value) -> ir.DataType:
    kind = types.get(value)
    if not isinstance(kind, ir.TensorType):
        raise SpecError(
            f"the gradient '{value.name}' has no known element type",
            remedy="declare the types of the values of the backward pass",
        )
    return kind.dtype


def refuse_old(model: ir.Model, least: int) -> None:
    """SpecError for an opset without what the nodes of a loss scale need."""
    version = element_types.default_opset(model.graph.opset_imports)
    if version < least:
        raise SpecError(
            f"a loss scale needs opset {least}, and the model has {version}",
            remedy=f"convert it to opset {least} or later (onnx.version_converter)",
        )
