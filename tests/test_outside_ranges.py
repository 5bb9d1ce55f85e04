"""Samples that leave the ranges on which what is proven rests."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import text
from tests.commands import run

pytest.importorskip("onnxruntime")


@pytest.fixture
def image(tmp_path, monkeypatch):
    """The name of a model of an image in the working folder, with a sample of 200 and one of 300."""
    monkeypatch.chdir(tmp_path)
    source = "g (float[1,3,4,4] x) => (float[1,5,4,4] y) <float[5,3,1,1] w> { a = Conv (x, w) y = Relu (a) }"
    onnx.save(text.model(source), "m.onnx")
    for value in (200, 300):
        np.savez(f"{value}.npz", x=np.full((1, 3, 4, 4), value, np.float32))
    return "m.onnx"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data", "300.npz"], "between 300 and 300 in the samples, and assumed to be between -255 and 255"),
        (["--data", "200.npz", "--data", "300.npz"], "between 200 and 300 in the samples"),
        (["--calibrate", "300.npz"], "between 300 and 300 in the samples"),
        (["--calibrate", "300.npz", "--data", "200.npz"], "between 200 and 300 in the samples"),
        (["--data", "200.npz", "--range", "x=0:1"], "and declared to be between 0 and 1"),
        (["--data", "200.npz"], None),
        (["--data", "300.npz", "--range", "x=0:300"], None),
        ([], None),
    ],
)
def test_samples_outside_of_a_range_are_said(image, flags, said):
    """Whether it is declared or assumed, and whether samples are compared or observed; in JSON too."""
    done = run(image, "-o", "half.onnx", "--json", "report.json", *flags)
    assert done.exit_code == 0, done.output
    warnings = json.loads(Path("report.json").read_text())["warnings"]
    found = [each for each in warnings if "in the samples" in each]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
