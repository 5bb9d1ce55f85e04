"""Copies of made-up inputs that are loud, faint, or far from 0: a warning where the result fails on one."""

import json

import numpy as np
import onnx
import pytest

from amp_rewrite import rewrite
from tests import text
from tests.commands import run

pytest.importorskip("onnxruntime")
from amp_rewrite import verify

SIZE = 256


def layers(*weights):
    """A model of matrix products, one after the other."""
    arrays = {f"w{index}": array.astype(np.float32) for index, array in enumerate(weights)}
    stored = ", ".join(f"float[{','.join(map(str, array.shape))}] {name}" for name, array in arrays.items())
    names = ["x", *"abc"[: len(weights) - 1], "y"]
    body = " ".join(f"{names[at + 1]} = MatMul ({names[at]}, w{at})" for at in range(len(weights)))
    return text.model(f"g (float[{SIZE},{SIZE}] x) => (float[{SIZE},n] y) <{stored}> {{ {body} }}", arrays)


def normal(size):
    """Weights of this size."""
    return size * np.random.default_rng(0).standard_normal((SIZE, SIZE))


LOUD = layers(normal(20), normal(0.001))
FAINT = layers(normal(1e-3), normal(1e-3), normal(30))
OFFSET = layers(abs(normal(1 / SIZE)), normal(1))
SAFE = layers(normal(0.05))


@pytest.mark.parametrize(
    ("original", "change"),
    [
        (LOUD, "100 times as large"),
        (FAINT, "1,000 times as small"),
        (OFFSET, "offset by 10 times their spread"),
    ],
    ids=["loud", "faint", "offset"],
)
def test_what_made_up_inputs_do_not_show_is_a_warning(tmp_path, original, change):
    """The verdict stays good, and so does the exit code; the report has the change and its error."""
    path, report = tmp_path / "m.onnx", tmp_path / "r.json"
    onnx.save(original, path)
    done = run(path, "--json", report, "--require=verify")
    verdict = json.loads(report.read_text())["verification"]
    assert (done.exit_code, verdict["verified"]) == (0, True), done.output
    failed = next(each for each in verdict["stressed"] if each["change"] == change)
    assert failed["loses_values"] or failed["error"] > 0.01
    assert [f"warning  {each}" in done.output for each in verdict["warnings"]] == [True]
    (line,) = [line for line in done.output.splitlines() if "compare on yours" in line]
    assert line.startswith("warning  if your inputs can be ")
    assert f"{change} (" in line
    assert line.endswith("the verdict is FAIL: compare on yours with --data FILE.npz")


@pytest.mark.parametrize("original", [LOUD, FAINT, OFFSET], ids=["loud", "faint", "offset"])
def test_given_inputs_are_not_changed(tmp_path, original):
    """They are what the user has."""
    path, report = tmp_path / "m.onnx", tmp_path / "r.json"
    onnx.save(original, path)
    sample = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=sample)
    done = run(path, "--json", report, "--data", tmp_path / "in.npz")
    assert done.exit_code == 0
    assert "compare on yours" not in done.output
    assert json.loads(report.read_text())["verification"]["stressed"] == []
    assert verify(original, rewrite(original).model, {"x": sample}).stressed == ()


def test_what_half_computes_well_is_no_warning():
    """The changed copies pass as well, but for an offset that half inputs cannot hold: it only insures."""
    verdict = verify(SAFE, rewrite(SAFE).model)
    assert (verdict.ok, [failed for failed in verdict.stressed if failed.warns]) == (True, [])


@pytest.mark.parametrize("name", ["pixel_values", "latents", "attention_mask"])
def test_what_is_normalised_or_a_mask_stays_as_it_is(name):
    """Its name tells how large it is."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(LOUD)
    renamed.graph.input[0].name = renamed.graph.node[0].input[0] = name
    assert verify(renamed, rewrite(renamed).model).stressed == ()


def test_a_declared_range_is_what_is_tried(tmp_path):
    """It tells how large inputs are."""
    onnx.save(LOUD, tmp_path / "m.onnx")
    done = run(tmp_path / "m.onnx", "--range", "x=-2:2")
    assert "PASS" in done.output
    assert "compare on yours" not in done.output
