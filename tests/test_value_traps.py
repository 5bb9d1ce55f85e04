"""Values that converters get wrong: each network is close at the defaults, and far off where all is half."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import amp_rewrite
from amp_rewrite import Options
from amp_rewrite.policy.options import Level
from amp_rewrite.running.verification import Verdict
from tests import case_files
from tests.repairs import OnSamples, repaired
from tests.text import model, types, unchecked

pytest.importorskip("onnxruntime")
TEXTS = {case.name: case.model for case in case_files.read(case_files.FOLDER / "value_traps.cases")}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Trap:
    """What a network of `cases/value_traps.cases` has: its weights as numbers or the scale of normal ones,
    one sample, and nodes that must stay float32, and that must be half.
    """

    weights: dict[str, Any]
    sample: dict[str, Any]
    full: str
    half: str

    def model(self, name: str) -> onnx.ModelProto:
        """The network of that name with these weights."""
        shapes = {tensor.name: tensor.dims for tensor in unchecked(TEXTS[name]).graph.initializer}
        drawn = {
            name: normal(*shapes[name], scale=given, seed=seed) if np.isscalar(given) else given
            for seed, (name, given) in enumerate(self.weights.items())
        }
        return model(TEXTS[name], {name: np.asarray(array, np.float32) for name, array in drawn.items()})

    @property
    def feeds(self) -> Arrays:
        """The sample, in float32 or in integers."""
        arrays = {name: np.asarray(array) for name, array in self.sample.items()}
        return {name: a if a.dtype == np.int64 else a.astype(np.float32) for name, a in arrays.items()}


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """Normal numbers; as weights of a product they keep its scale."""
    return np.random.default_rng(seed).standard_normal(shape) * scale


OUTLIER = normal(32, 32, scale=0.2, seed=1) * np.where(np.arange(32) == 3, 3e4, 1)
"""Weights with one channel that is an outlier, as in trained models."""
KEEP = np.stack([[[1] * 5 + [0] * 3], [[0] * 8]])
"""Nothing is left of the second row."""

TRAPS = {
    # Audio in whole numbers of 16 bits: its energy is far beyond half, and it is itself at its limit.
    "PCM audio": Trap(
        {"w": 1 / 3, "v": 1 / 6},
        {"x": np.round(32767 * np.sin(np.arange(256) / 5)).reshape(1, 1, 256)},
        full="square mean safe",
        half="first act second",
    ),
    # A residual stream at 1e5, as in T5: sums and what reads them, up to the norm.
    "residual stream at 1e5": Trap(
        {"gain": np.ones(32), "down": OUTLIER, "up": 0.2, "out": 0.2},
        {"x": normal(2, 8, 32)},
        full="outer stream square mean",
        half="inner act head",
    ),
    # A mask of float32's lowest number that is added to scores, and a row of padding alone.
    "padded row": Trap(
        {"wq": 0.2, "wk": 0.2, "wv": 0.2},
        {"x": normal(2, 8, 16), "keep": KEEP.astype(float)},
        full="",
        half="query key value scores mix",
    ),
    # Ids above the largest number of half, which are carried in float32 and halved on their way.
    "ids above 65504": Trap(
        {"table": 1.0, "w": 0.4},
        {"ids": [[3, 2049, 30001, 65505, 70001, 79999]], "x": normal(1, 6, 8)},
        full="carry split whole back",
        half="head",
    ),
    # Angles of rotary embeddings, where half has steps of 4.
    "positions up to 8191": Trap(
        {"wq": 0.25, "wk": 0.25, "speed": 10000.0 ** (-np.arange(8).reshape(1, 1, 8) / 8)},
        {"at": [[0, 1, 2047, 2049, 4097, 6001, 8190, 8191]], "x": normal(1, 8, 16)},
        full="carry angles",
        half="query key scores",
    ),
    # A LayerNorm in several nodes whose epsilon, and whose variances, half flushes to zero.
    "epsilon of 1e-12": Trap(
        {"gain": 1 + normal(32, scale=0.1), "bias": 0.1, "w": 0.2},
        {"x": normal(4, 32, scale=2e-6)},
        full="square variance safe",
        half="head",
    ),
}


@pytest.mark.parametrize("name", TRAPS)
def test_the_defaults_are_right(name: str):
    """The result is close to the original, with the products in half and the dangerous part in float32."""
    trap = TRAPS[name]
    done = repaired(OnSamples(trap.model(name), trap.feeds))
    assert isinstance(done.verification, Verdict)
    assert done.verification.ok, done.verification.faults
    known = types(onnx.shape_inference.infer_shapes(done.result.model))
    made = {node.name: known[node.output[0]] == "FLOAT16" for node in done.result.model.graph.node}
    if done.result.report.rescaled is None:  # else it is half, and no danger
        assert [node for node in trap.full.split() if made.get(node)] == []
    assert [node for node in trap.half.split() if node in made and not made[node]] == []


@pytest.mark.parametrize("name", sorted(TRAPS.keys() - {"padded row"}))  # masks are clamped even there
def test_everything_in_half_is_wrong(name: str):
    """What makes it a trap: the same network is far off, or not finite, where all that can be is half."""
    trap = TRAPS[name]
    network = trap.model(name)
    forced = amp_rewrite.rewrite(network, Options(level=Level.UNSAFE_FORCE_ALL))
    assert not amp_rewrite.verify(network, forced.model, trap.feeds, device="cpu").ok
