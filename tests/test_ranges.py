"""A large offset in the models of users: `ranges.cases` has the small ones."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import Pins, Tolerances
from amp_rewrite.policy.options import Options

CASES = Path(__file__).parents[1].parent / "shared" / "cases"


@pytest.mark.parametrize("name", ["62_two", "62_mixed"])
@pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared")
def test_a_weather_model_keeps_what_varies(name):
    """Its de-normalisation is float32 alone, and forced into half the verdict and the search fail for it."""
    pytest.importorskip("onnxruntime")
    from amp_rewrite.tuning.tune import tune  # noqa: PLC0415

    proto, feeds = onnx.load(CASES / f"{name}.onnx"), dict(np.load(CASES / f"{name}.npz"))
    result = amp_rewrite.rewrite(proto)
    assert result.report.nodes.half == 5
    assert amp_rewrite.verify(proto, result.model, feeds, Tolerances(error=1e-3), device="cpu").ok
    forced = Options(pins=Pins(force_half="/Add"))
    verdict = amp_rewrite.verify(proto, amp_rewrite.rewrite(proto, forced).model, feeds, device="cpu")
    assert verdict.is_far
    assert verdict.error > 0.1 > 1e-3 > verdict.outputs[0].metrics.relative_l2
    assert not tune(proto, feeds, forced, max_error=1e-3, device="cpu").is_met
