"""Train steps for tests: three real ones, one as text, and a loop that trains them on onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from amp_rewrite import training
from amp_rewrite.training import TrainSpec
from tests import text

Run = Callable[[Mapping[str, NDArray[np.generic]]], dict[str, NDArray[np.generic]]]
Tensors = Mapping[str, NDArray[np.generic]]
FOLDER = Path(__file__).parents[2] / "shared" / "models" / "training"
NAMES = ("mlp_adam", "cnn_momentum", "transformer_adam")

MOVES = """
  a1 = Mul (lr, dw1)  w1_new = Sub (w1, a1)
  a2 = Mul (lr, dw2)  w2_new = Sub (w2, a2)
"""
"""Plain gradient descent."""

STATE = "float[4, 16] w1, float[16, 3] w2"
NEW = "float[4, 16] w1_new, float[16, 3] w2_new"
SEEDED = "dp = Mul (dm, loss_grad)"


def source(
    moves: str = MOVES,
    state: str = STATE,
    new: str = NEW,
    seeded: str = SEEDED,
    forward: str = "h = MatMul (x, w1)",
    stored: str = "float loss_grad = {1.0}",
    opset: int = 18,
    loss: str = "loss",
) -> str:
    """Two layers, the mean squared error, and gradients, as ONNX text; parts may be given in other words."""
    return f"""<ir_version: 8, opset_import: ["" : {opset}]>
    step (float[8, 4] x, float[8, 3] y, float lr, {state}) => (float {loss}, {new})
    <float zero = {{0.0}}, float scale = {{0.083333336}}, {stored}> {{
      {forward}
      r = Relu (h)          p = MatMul (r, w2)
      d = Sub (p, y)        sq = Mul (d, d)          {loss} = ReduceMean <keepdims = 0> (sq)
      dm = Mul (d, scale)   {seeded}
      rt = Transpose <perm = [1, 0]> (r)             dw2 = MatMul (rt, dp)
      w2t = Transpose <perm = [1, 0]> (w2)           dr = MatMul (dp, w2t)
      pos = Greater (r, zero)                        dh = Where (pos, dr, zero)
      xt = Transpose <perm = [1, 0]> (x)             dw1 = MatMul (xt, dh)
      {moves}
    }}"""


def step(written: str | None = None) -> onnx.ModelProto:
    """A train step that is described as text."""
    model = text.unchecked(source() if written is None else written)
    for tensor in model.graph.initializer if model.ir_version < 4 else ():
        shape = list(tensor.dims)  # each is an input as well, before IR version 4
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    onnx.checker.check_model(model, full_check=True)
    return model


def start(model: onnx.ModelProto, seed: int = 3) -> dict[str, NDArray[np.generic]]:
    """Positive numbers for every input but the batch, the rate and the scale."""
    rng = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, NDArray[np.generic]] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        if value.name not in ("x", "y", "lr", "loss_scale", "good_steps") and value.name not in stored:
            numbers = np.asarray(np.abs(rng.standard_normal(shape)) * 0.3)
            found[value.name] = numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return found


def batches(model: onnx.ModelProto, count: int) -> list[Tensors]:
    """The same normal numbers and labels for every version of a step."""
    rng = np.random.default_rng(5)
    found: list[Tensors] = []
    kinds = {value.name: value.type.tensor_type for value in model.graph.input}
    for _ in range(count):
        made: dict[str, NDArray[np.generic]] = {"lr": np.asarray(0.01, np.float32)}
        for name in ("x", "y"):
            shape = [dim.dim_value for dim in kinds[name].shape.dim]
            made[name] = (
                rng.integers(0, 10, shape)
                if kinds[name].elem_type == onnx.TensorProto.INT64
                else rng.standard_normal(shape).astype(np.float32)
            )
        found.append(made)
    return found


def real(name: str) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """One of the real steps with its initial state; skips where it is missing."""
    path = FOLDER / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return onnx.load(path), dict(np.load(path.with_suffix(".npz")))


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def weighted(model: onnx.ModelProto, weight: float) -> onnx.ModelProto:
    """The step with another weight of its loss: the number that is its seed."""
    copy = copied(model)
    for tensor in copy.graph.initializer:
        if tensor.name == "loss_grad":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(weight, np.float32), "loss_grad"))
    return copy


@dataclass
class Trained:
    """What came of some steps: the losses, every output of each step, and the state after the last."""

    losses: list[float] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    state: dict[str, NDArray[np.generic]] = field(default_factory=dict)


def train(
    model: onnx.ModelProto,
    spec: TrainSpec,
    state: Tensors,
    fed: Iterable[Tensors],
    run: Run | None = None,
) -> Trained:
    """Trains a step from a state, and from the start values of its loss scale, on onnxruntime or by `run`."""
    run = run or session(model)
    done, pairs = Trained(), {pair.input: pair.output for pair in spec.state}
    outputs = {value.name for value in model.graph.output}
    pairs |= {
        value.name: f"{value.name}.new" for value in model.graph.input if f"{value.name}.new" in outputs
    }
    done.state = {**state, **_scale(model)}
    for batch in fed:
        made = run({**done.state, **batch})
        done.state |= {name: made[after] for name, after in pairs.items()}
        done.losses.append(float(made[spec.loss]))
        done.outputs.append(made)
    return done


def _scale(model: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    scaled = any(pair.key == "amp_rewrite.train.loss_scale" for pair in model.metadata_props)
    return training.initial_state(model) if scaled else {}


def session(model: onnx.ModelProto) -> Callable[[Tensors], dict[str, NDArray[np.generic]]]:
    """Runs a model; what it does not take is left out."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()  # which fuse a constant factor with a product, and round otherwise
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    opened = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in opened.get_inputs() if value.name not in stored]
    outputs = [value.name for value in opened.get_outputs()]

    def run(feeds: Tensors) -> dict[str, NDArray[np.generic]]:
        return dict(zip(outputs, opened.run(None, {name: feeds[name] for name in names}), strict=True))

    return run
