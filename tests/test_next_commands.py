"""Advice after `next` leads to the decisions of the command that printed it."""

import shlex

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests import text
from tests.commands import run

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 256] x) => (float[n, 256] y) <float[256, 256] w> {
  [first] h = MatMul (x, w)
  [second] y = MatMul (h, w)
}"""


@pytest.fixture
def model(tmp_path):
    """Two products, which overflow half where the input is large; beside it such an input."""
    proto = parser.parse_model(TEXT)
    del proto.graph.initializer[:]
    weight = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "my model.onnx")
    np.savez(tmp_path / "large.npz", x=np.full((4, 256), 1e5, np.float32))
    return tmp_path / "my model.onnx"


def followed(output, node, model, flags):
    """The explanation of a node by what the line `next` names: a model, or a plan that the command on `model`
    with `flags` saves.
    """
    (line,) = (line for line in output.splitlines() if line.startswith("next "))
    if "add --save-plan FILE" not in line:
        return run(*shlex.split(line.removeprefix("next"), comments=True)[1:], node).output
    plan = model.with_name("saved.json")
    run(model, *flags, "--save-plan", plan)
    return run("explain", plan, node).output


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--keep-full", "first"), "pin"),
        (("--deny", "MatMul"), "denied"),
        (("--to", "bfloat16", "--keep-full", "fir.*"), "pin"),
        (("--keep-full", "first", "--skip=metadata"), "pin"),
        (("--keep-full", "first", "--keep-full", "second"), "pin"),
    ],
    ids=" ".join,
)
def test_flags_that_decided_are_said_again(model, flags, reason):
    """The result says it, or a plan where the result says nothing."""
    result = run(model, "--skip=verify", *flags)
    assert result.exit_code == 0, result.output
    assert reason in followed(result.output, "first", model, ("--skip=verify", *flags))


def test_what_a_run_showed_is_said_of_a_result_that_stays(model):
    """Nothing becomes half, so that the result carries no reasons: a plan has them."""
    pytest.importorskip("onnxruntime")
    given = ("--data", model.with_name("large.npz"))
    result = run(model, *given)
    assert "nothing became float16" in result.output
    assert "was seen" in followed(result.output, "first", model, given)


@pytest.mark.parametrize(
    "flags",
    [
        ("--level", "unsafe-force-all", "--data", "large.npz"),
        ("--in-place", "--skip", "repair", "--data", "large.npz"),
        ("--plan", "plan.json", "--data", "large.npz"),
        ("--skip", "repair", "--data", "large.npz"),
        ("--tolerance", "error=0", "--require=verify"),
        ("--force-half", ".*", "--tolerance", "error=1e-9", "--require=verify"),
    ],
    ids=" ".join,
)
def test_something_is_always_next_after_a_failure(model, monkeypatch, flags):
    """In one place, whatever was asked for."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(model.parent)
    run(model.name, "--dry-run", "--save-plan", "plan.json")
    result = run(model.name, *flags)
    assert result.exit_code == 1, result.output
    assert sum(line.startswith("next ") for line in result.output.splitlines()) == 1


MIXED = """g (float[1, 4, 8, 8] x) => (float[1, 4, 16, 16] y)
    <float[4, 4, 3, 3] w, float[0] roi, float[4] scales = {1, 1, 2, 2}> {
  [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w) [up] b = Resize <mode = "nearest"> (a, roi, scales)
  [last] y = Conv <pads = [1, 1, 1, 1]> (b, w) }"""


def test_nothing_is_explained_where_nothing_stays(tmp_path):
    """A node of which only the schema has a part in float32 is no reason to ask."""
    path = tmp_path / "m.onnx"
    weights = {"roi": np.zeros(0, np.float32), "scales": np.float32([1, 1, 2, 2])}
    onnx.save(text.model(MIXED, weights), path)
    done = run(path, "--skip=verify", "-v").stdout
    assert "3 in float16, 0 in float32" in done, done
    assert "next" not in done
    assert "amp-rewrite explain" in run(path, "--skip=verify", "--keep-full", "conv").stdout


def test_a_looser_bound_that_passes_is_named(model, monkeypatch):
    """With the flag that bounds the error in this command, to be given in place of the bound that was."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(model.parent)
    np.savez("small.npz", x=np.full((4, 256), 0.1, np.float32))
    given = (model.name, "--data", "small.npz")
    for command, bound in (((), ("--tolerance", "error=1e-12")), (("tune",), ("--tolerance", "error=1e-11"))):
        lines = run(*command, *given, *bound).output.splitlines()
        (line,) = (line for line in lines if " is within that" in line)
        flag, looser = line.partition("#")[0].split()[-2:]
        assert flag == bound[0]
        assert run(*command, *given, flag, looser).exit_code == 0


def test_a_pin_that_a_search_could_not_mend_is_left(model, monkeypatch):
    """A longer search with the same pin would fail as well; one without it passes."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(model.parent)
    given = (model.name, "-o", "r.onnx", "--data", "large.npz")
    result = run(*given, "--force-half", ".*")
    assert result.exit_code == 1, result.output
    (line,) = (line for line in result.output.splitlines() if line.startswith("next "))
    assert line.endswith(f"tune '{model.name}'   # searches for a plan that passes, without --force-half")
    again = run("tune", *given)
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize(
    ("flags", "said"), [(("--target", "trt"), True), ((), False)], ids=["tensorrt", "any"]
)
def test_a_result_for_tensorrt_ends_with_the_command_that_builds_it(model, flags, said):
    """The last line is a command with the names of this result; not where nothing became half."""
    output = run(model, "--skip=verify", "--keep-full", "first", *flags).output
    last = shlex.split(output.splitlines()[-1], comments=True)
    half = model.with_name("my model_fp16.onnx")
    command = ["trtexec", f"--onnx={half}", f"--saveEngine={half.with_suffix('.plan')}"]
    assert (last == command) == said, output
    assert "trtexec" not in run(model, "--keep-full", ".*", "--skip=verify", *flags).output
