"""Trains a step on onnxruntime in float32, and in float16 without, with a fixed and a dynamic loss scale.

    python examples/train_step/make_step.py step.onnx
    python examples/train_step/train.py step.onnx docs/train_step.svg

Float16 is emulated, rounding after every half operation: onnxruntime's CPU provider itself does not round
between half nodes, and hides the underflow. Needs matplotlib: pip install matplotlib
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime

from amp_rewrite import emulate, training
from amp_rewrite.training import TrainSpec

STEPS, RATE = 150, 0.002
VARIANTS = {"float16, no scale": None, "float16, fixed at 128": 128, "float16, dynamic": "dynamic"}


def batches(model: onnx.ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """The same random inputs for every run, and what a network of fixed weights makes of them."""
    rng = np.random.default_rng(7)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    weights = rng.standard_normal((shapes["x"][1], shapes["y"][1])).astype(np.float32)
    while True:
        x = rng.standard_normal(shapes["x"]).astype(np.float32)
        yield {"x": x, "y": (0.06 * np.tanh(0.3 * x @ weights)).astype(np.float32)}


def train(model: onnx.ModelProto, spec: TrainSpec, state: dict[str, np.ndarray]) -> list[float]:
    """The loss of each step; every step is fed the state that the one before it gave."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    pairs = [(pair.input, pair.output) for pair in spec.state]
    pairs += [(name, f"{name}.new") for name in ("loss_scale", "good_steps") if f"{name}.new" in names]
    losses: list[float] = []
    for _, batch in zip(range(STEPS), batches(model), strict=False):
        feeds = {**state, **batch, "lr": np.asarray(RATE, np.float32)}
        made = dict(zip(names, session.run(None, feeds), strict=True))
        state = {**state, **{before: made[after] for before, after in pairs}}
        losses.append(float(made[spec.loss]))
    return losses


def main() -> None:
    """Prints the first and the last loss of each variant, and draws all of them."""
    step, picture = Path(sys.argv[1]), Path(sys.argv[2])
    model, state = onnx.load(step), dict(np.load(step.with_suffix(".npz")))
    spec = training.find_spec(model)
    curves = {"float32": train(model, spec, state)}
    for name, scale in VARIANTS.items():
        half = training.rewrite_train_step(model, loss_scale=scale).model
        start = training.initial_state(half) if scale is not None else {}
        curves[name] = train(emulate(half), spec, {**state, **start})
    axes = plt.subplots(figsize=(7, 4))[1]
    for (name, losses), style in zip(curves.items(), ("k-", "r-", "b--", "g:"), strict=True):
        print(f"{name:<24}{losses[0]:.4e} -> {losses[-1]:.4e}")
        axes.semilogy(losses, style, label=name, linewidth=3 if name == "float32" else 1.5)
    axes.set(xlabel="step", ylabel="loss", title="A train step in float16, with and without a loss scale")
    axes.legend()
    plt.rcParams["svg.hashsalt"] = "amp-rewrite"  # the same file for the same numbers
    plt.savefig(picture, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
