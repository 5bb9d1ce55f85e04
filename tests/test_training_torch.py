"""A train step that PyTorch exports, unlike all that are stored; slow, and skipped without torch."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from amp_rewrite import emulate, training
from tests import train_steps
from tests.train_steps import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "onnxscript"))),
        reason="torch or onnxscript is missing",
    ),
    pytest.mark.filterwarnings("ignore"),  # torch's own
]
MAKER = Path(__file__).parents[1] / "examples" / "train_step" / "make_step.py"


@pytest.fixture(scope="module")
def exported():
    """An attention layer and a recurrent one, with Adam, clipping by norm, and both kinds of weight decay."""
    spec = importlib.util.spec_from_file_location("make_step", MAKER)
    maker = importlib.util.module_from_spec(spec)
    sys.modules["make_step"] = maker
    spec.loader.exec_module(maker)
    import torch  # noqa: PLC0415 - where it is installed
    from torch import nn  # noqa: PLC0415

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.qkv, self.out = nn.Embedding(20, 32), nn.Linear(32, 96), nn.Linear(32, 32)
            self.read, self.carry, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 5)

        def forward(self, x):
            h = self.embedding(x)
            q, k, v = self.qkv(h).chunk(3, -1)
            h = h + self.out(torch.softmax(q @ k.transpose(-1, -2) / 32**0.5, -1) @ v)
            state = torch.zeros_like(h[:, 0])
            for t in range(h.shape[1]):
                state = torch.tanh(self.read(h[:, t]) + self.carry(state))
            return self.head(state)

    def loss(logits, y):
        return -torch.log_softmax(logits, -1).gather(1, y[:, None]).mean()

    torch.manual_seed(0)
    batch = torch.randint(0, 20, (16, 6)), torch.randint(0, 5, (16,))
    adam = maker.Adam(clip=1.0, decay=0.01, decoupled=0.01)
    return maker.export(Net(), loss, batch, adam, named=False)


def test_it_is_found_without_a_name(exported):
    """Loss, seed and every pair of state are found from the dataflow alone, gradients before the clip."""
    found = training.find_spec(exported.model)
    inputs = [value.name for value in exported.model.graph.input]
    outputs = [value.name for value in exported.model.graph.output]
    assert found.loss == outputs[0]
    assert {(pair.input, pair.output) for pair in found.state} == set(
        zip(inputs[3:], outputs[1:], strict=True)
    )
    step = training.rewrite_train_step(exported.model).step
    assert step.guessed == ("loss", "state", "seed")
    shapes = {tuple(value.shape) for value in exported.state.values() if value.ndim}
    assert len(step.frontier) >= len(shapes)
    assert step.products > 20


def test_it_trains_in_half_as_in_float32(exported):
    """No bit changes in float32; emulated, the loss after 20 steps is within 2 %."""
    model, spec = exported.model, training.find_spec(exported.model)
    x, y, lr = [value.name for value in model.graph.input][:3]
    rng = np.random.default_rng(2)
    fed = [
        {x: rng.integers(0, 20, (16, 6)), y: rng.integers(0, 5, 16), lr: np.asarray(0.01, np.float32)}
    ] * 20
    before = train(model, spec, exported.state, fed)
    scaled = training.insert_loss_scale(model, spec, training.DynamicLossScale(2.0**10, 3))
    after = train(scaled.model, spec, exported.state, fed)
    assert before.losses == after.losses
    assert all((before.state[name] == after.state[name]).all() for name in before.state)
    assert before.losses[-1] < 0.5 * before.losses[0]
    half = train_steps.train(emulate(training.rewrite_train_step(model).model), spec, exported.state, fed)
    assert half.losses[-1] == pytest.approx(before.losses[-1], rel=0.02)
