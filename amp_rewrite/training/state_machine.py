"""The dynamic loss scale as nodes: scale and good steps go in, and come out as they are for the next step.

    finite:      good + 1 < period:  good + 1, the same scale
                 else:               0, scale * multiplier (if float32 holds it, else the same scale)
    not finite:  0, max(scale / multiplier, 1)

(tensorflow/python/training/experimental/loss_scale.py, DynamicLossScale.update)
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.training.node_building import BOOL, INT64, NodeBuilder
from amp_rewrite.training.scales import DynamicLossScale


@dataclass(frozen=True, slots=True)
class ScaleState:
    """The inputs of a step that hold its loss scale, and the number of steps since it last changed."""

    scale: ir.Value
    good_steps: ir.Value


def inputs(build: NodeBuilder) -> ScaleState:
    """Two new scalar inputs of the model: float32 and int64."""
    return ScaleState(build.input("loss_scale", ir.DataType.FLOAT), build.input("good_steps", INT64))


def update(state: ScaleState, finite: ir.Value, asked: DynamicLossScale, build: NodeBuilder) -> ScaleState:
    """The scale and the number of good steps after a step whose gradients are `finite`, or not."""
    one, zero = build.scalar("good_steps__one", 1, INT64), build.scalar("good_steps__zero", 0, INT64)
    period = build.scalar("good_steps__period", asked.increment_period, INT64)
    count = build.node("Add", (state.good_steps, one), "good_steps__count", dtype=INT64)
    waits = build.node("Less", (count, period), "good_steps__waits", dtype=BOOL)
    grown = build.node("Where", (waits, state.scale, _grown(state.scale, asked, build)), "loss_scale__finite")
    shrunk = _shrunk(state.scale, asked, build)
    scale = build.node("Where", (finite, grown, shrunk), "loss_scale__next")
    counted = build.node("And", (finite, waits), "good_steps__counts", dtype=BOOL)
    return ScaleState(scale, build.node("Where", (counted, count, zero), "good_steps__next", dtype=INT64))


def _grown(scale: ir.Value, asked: DynamicLossScale, build: NodeBuilder) -> ir.Value:
    """The scale times the multiplier; as it was, where that is infinite."""
    by = build.scalar("loss_scale__multiplier", asked.multiplier, ir.DataType.FLOAT)
    infinity = build.scalar("loss_scale__infinity", float("inf"), ir.DataType.FLOAT)
    larger = build.node("Mul", (scale, by), "loss_scale__larger")
    held = build.node("Less", (larger, infinity), "loss_scale__holds", dtype=BOOL)
    return build.node("Where", (held, larger, scale), "loss_scale__grown")


def _shrunk(scale: ir.Value, asked: DynamicLossScale, build: NodeBuilder) -> ir.Value:
    by = build.scalar("loss_scale__divisor", asked.multiplier, ir.DataType.FLOAT)
    least = build.scalar("loss_scale__least", 1.0, ir.DataType.FLOAT)
    smaller = build.node("Div", (scale, by), "loss_scale__smaller")
    return build.node("Max", (smaller, least), "loss_scale__shrunk")
