"""Exports a whole train step from PyTorch as a plain ONNX graph: weights and a batch in, new weights out.

    python examples/train_step/make_step.py step.onnx     # and step.npz, the initial state

Needs torch 2.13 and onnxscript (pip install torch onnxscript). `make_fx` records forward pass, backward
pass and optimiser as one graph of ATen operators, which the exporter turns into ONNX. Two things to know:
cross-entropy is best written with log_softmax and gather, since the exporter (torch 2.13) lowers the second
output of nll_loss wrongly, and makes its gradients N times too large; and Adam's epsilon is 1e-7, since the
exporter's optimiser drops the addition of 1e-8 and less. Convolutions need a decomposition of
convolution_backward.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx


@dataclass(frozen=True)
class Adam:
    """Adam with clipping by the norm of all gradients, weight decay added to them, and decoupled decay."""

    clip: float = 0.0
    decay: float = 0.0
    decoupled: float = 0.0
    epsilon: float = 1e-7

    def __call__(self, lr: Tensor, step: Tensor, given: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """New parameters, first and second moments from parameters, gradients and both moments."""
        parameters, gradients, *_ = given
        if self.clip:
            norm = torch.sqrt(sum((g * g).sum() for g in gradients))
            factor = torch.clamp(self.clip / (norm + 1e-6), max=1.0)
            gradients = [g * factor for g in gradients]
        made = [self._one(lr, step, *each) for each in zip(parameters, gradients, *given[2:], strict=True)]
        return [list(column) for column in zip(*made, strict=True)]

    def _one(
        self, lr: Tensor, step: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor
    ) -> tuple[Tensor, ...]:
        g = g + self.decay * p if self.decay else g
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        change = m / (1 - 0.9**step) / (torch.sqrt(v / (1 - 0.999**step)) + self.epsilon)
        p = p * (1 - lr * self.decoupled) if self.decoupled else p
        return p - lr * change, m, v


@dataclass(frozen=True)
class Exported:
    """A train step and its initial state, by input."""

    model: onnx.ModelProto
    state: dict[str, np.ndarray]


def export(
    net: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],
    optimiser: Adam,
    *,
    named: bool = True,
) -> Exported:
    """The step of a network on a batch (x, y). Without `named`, values have the exporter's own names."""
    names = [name for name, _ in net.named_parameters()]
    parameters = [parameter.detach().clone() for parameter in net.parameters()]

    def step(x: Tensor, y: Tensor, lr: Tensor, count: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        held, first, second = (state[i * len(names) : (i + 1) * len(names)] for i in range(3))
        held = [parameter.detach().requires_grad_() for parameter in held]
        found = loss(torch.func.functional_call(net, dict(zip(names, held, strict=True)), (x,)), y)
        gradients = torch.autograd.grad(found, held)
        new = optimiser(lr, count + 1, (held, gradients, first, second))
        return (found.detach(), count + 1, *(value.detach() for group in new for value in group))

    slots = [torch.zeros_like(parameter) for _ in range(2) for parameter in parameters]  # each its own tensor
    given = (*batch, torch.tensor(0.01), torch.tensor(0.0), *parameters, *slots)
    keys = ["step", *names, *(f"{name}.m" for name in names), *(f"{name}.v" for name in names)]
    said = {"input_names": ["x", "y", "lr", *keys], "output_names": ["loss", *(f"{key}.new" for key in keys)]}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        traced = make_fx(step)(*given)
        program = torch.onnx.export(
            traced, given, dynamo=True, opset_version=20, verbose=False, **(said if named else {})
        )
    model = program.model_proto
    inputs = [value.name for value in model.graph.input]
    arrays = [value.numpy() for value in given[3:]]
    return Exported(model, dict(zip(inputs[3:], arrays, strict=True)))


BATCH, INPUTS, OUTPUTS = 1024, 16, 1024


def regression() -> Exported:
    """A small network whose loss is a tenth of a mean over 2^20 numbers: float16 loses its gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, OUTPUTS)
    )
    with torch.no_grad():
        net[-1].weight *= 0.1  # errors of the size of the outputs that it is to learn
        net[-1].bias *= 0.1
    batch = torch.randn(BATCH, INPUTS), torch.randn(BATCH, OUTPUTS)
    return export(net, lambda made, wanted: 0.1 * ((made - wanted) ** 2).mean(), batch, Adam())


def main() -> None:
    """Writes the step and its initial state."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "step.onnx")
    made = regression()
    onnx.save(made.model, path)
    np.savez(path.with_suffix(".npz"), **made.state)
    print(f"{path}: {len(made.model.graph.node)} nodes, {len(made.state)} tensors of state")


if __name__ == "__main__":
    main()
