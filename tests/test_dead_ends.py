"""Where a newcomer came to a dead end: the line now says what to do."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.policy.options import Options
from amp_rewrite.reporting import verdict_text
from amp_rewrite.running.verdict import NotJudged
from tests.commands import run

pytest.importorskip("onnxruntime")


@pytest.mark.slow
def test_inputs_beside_one_of_several_models_are_its_data(tmp_path, monkeypatch):
    """Flags that say what the inputs are come first."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.onnx").write_bytes(demo.network().SerializeToString())
    np.savez(tmp_path / "a.npz", image=demo.feeds()["image"])
    done = run("a.onnx", "b.onnx", "-o", "half", "-v").stdout
    assert "compared with the original on 1 given sample from a.npz" in done
    assert done.count("synthetic sample (seed 0") == 1
    assert run("a.onnx", "b.onnx", "-o", "half", "--seed", "3", "-v").stdout.count("(seed 3") == 2
    assert TensorProto.FLOAT16 in {each.data_type for each in onnx.load("half/a.onnx").graph.initializer}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "PASS: verified against the original"),
        ({"signature": ("an output is gone",)}, "FAIL: not compared with the original"),
        ({"unproven": ("nothing is finite",)}, "FAIL: the comparison proves nothing"),
        ({"outputs": 0.1}, "FAIL: too far from the original"),
    ],
    ids=["close", "signature", "unproven", "far"],
)
def test_the_page_says_what_failed(changes, said):
    """A model that was compared, and is too far off, was not left unverified."""
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    far = amp_rewrite.verify(demo.network(), demo.network(seed=1), demo.feeds(), device="cpu")
    changes = {"outputs": far.outputs} if "outputs" in changes else changes
    assert verdict_text.in_short(replace(verdict, **changes)) == said


@pytest.mark.parametrize(
    ("ok", "said"), [(True, "on made-up images in 0..1 the error is"), (False, "if your images are in 0..1")]
)
def test_a_range_of_images_that_would_fail_is_no_riddle(ok, said):
    """What was not judged, and would have failed, says how to have one's own images judged."""
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    (note,) = verdict_text.notes(replace(verdict, not_judged=(NotJudged("0..1", 0.1, None, ok),)))
    assert said in note
    assert ("--data" in note) is not ok


def test_a_model_that_is_half_already_is_its_own_result(tmp_path):
    """Nothing is written; where nothing can become half, the report says why."""
    onnx.save(demo.network(), tmp_path / "m.onnx")
    half = amp_rewrite.rewrite(tmp_path / "m.onnx").model
    assert amp_rewrite.rewrite(half).model == half
    report = amp_rewrite.rewrite(onnx.load(tmp_path / "m.onnx"), Options(gate=True, device="t4")).report
    assert (report.obstacle is None) is bool(report.nodes.half)
