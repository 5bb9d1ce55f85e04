"""What is printed to be run next leads to the decisions of the command that printed it."""

import shlex

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

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


def followed(output, node):
    """The output of the commands on the line `next`, the last one about a node."""
    (line,) = (line for line in output.splitlines() if line.startswith("next "))
    words = shlex.split(line.removeprefix("next").strip(), comments=True)
    *before, last = " ".join(map(shlex.quote, words)).split(" '&&' ")
    for command in before:
        assert run(*shlex.split(command)[1:]).exit_code == 0
    return run(*shlex.split(last)[1:], node).output


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--keep-full", "first"), "pin"),
        (("--deny", "MatMul"), "denied"),
        (("--to", "bfloat16", "--keep-full", "fir.*"), "pin"),
        (("--keep-full", "first", "--no-metadata"), "pin"),
        (("--keep-full", "first", "--keep-full", "second"), "pin"),
    ],
    ids=" ".join,
)
def test_flags_that_decided_are_said_again(model, flags, reason):
    """The result says it, or the model with the same flags where the result says nothing."""
    result = run(model, "--no-verify", *flags)
    assert result.exit_code == 0, result.output
    assert reason in followed(result.output, "first")


def test_what_a_run_showed_is_said_of_a_result_that_stays(model):
    """Nothing becomes half, so that the result carries no reasons: a plan has them."""
    pytest.importorskip("onnxruntime")
    result = run(model, "--data", model.with_name("large.npz"))
    assert "nothing changed" in result.output
    assert "was seen" in followed(result.output, "first")
