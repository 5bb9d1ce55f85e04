"""`--opset N`: the opset of the result, newer or older, where every node means the same."""

import onnx
import pytest

from amp_rewrite import Options, rewrite
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ModelError
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import real_models, text
from tests.commands import failure, run

HEAD = '<ir_version: 8, opset_import: ["" : {opset}]>'
LAYER = """g (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w> {
    [product] a = MatMul (x, w)  [act] b = Relu (a)  [soft] y = Softmax <axis = -1> (b) }"""


def proto(graph, opset):
    """A model of that opset."""
    return text.unchecked(f"{HEAD.format(opset=opset)} {graph}")


@pytest.mark.parametrize(("old", "new"), [(13, 17), (13, 22), (17, 13), (17, 11), (22, 9), (17, 17)])
def test_the_opset_is_as_asked(old, new):
    """With the proof, and the same numbers; what is at that opset already has no such change."""
    model = proto(LAYER, old)
    result = text.rewritten(model, Options(opset=new))
    changes = () if old == new else (FormChange(FormChangeKind.OPSET_SET, before=old, after=new),)
    assert (result.model.opset_import[0].version, result.report.form_changes) == (new, changes)
    assert result.report.certificate.proved
    assert (Licence.OPSET in result.report.certificate.licences) == (old != new)
    text.agree(model, result.model)


def test_a_model_without_half_changes_its_opset_too():
    """The flag counts where nothing becomes half."""
    result = rewrite(proto("g (float[4] x) => (float[4] y) { y = Exp (x) }", 17), Options(opset=13))
    assert (result.report.nodes.half, result.report.changed, result.model.opset_import[0].version) == (
        0,
        True,
        13,
    )


@pytest.mark.parametrize(
    ("node", "old", "new", "name"),
    [
        ("[n] y = Softmax <axis = 0> (x)", 11, 13, "Softmax 'n'"),
        ("[n] y = Softmax <axis = 0> (x)", 13, 11, "Softmax 'n'"),
        ("[n] y = Mish (x)", 18, 17, "Mish 'n'"),
        ("[n] y = Clip <min = 0.0> (x)", 10, 11, "Clip 'n'"),
        ("[n] y = Clip (x, low)", 11, 10, "Clip 'n'"),
        ("[n] y = Squeeze (x, axes)", 13, 11, "Squeeze 'n'"),
        ("[n] y = Reshape <allowzero = 1> (x, axes)", 14, 13, "Reshape 'n'"),
        ("[n] y = Relu (x)", 13, 6, "Relu 'n'"),
    ],
)
def test_what_would_mean_something_else_is_refused(node, old, new, name, tmp_path):
    """With exit code 2 and one line that names the node; nothing is written."""
    graph = f"g (float[2, 2] x, float low, int64[1] axes) => (float y) {{ {node} }}"
    onnx.save(proto(graph, old), tmp_path / "m.onnx")
    line = failure(tmp_path / "m.onnx", "--opset", new)
    assert f"does not stay the same from opset {old} to {new}: {name}" in line
    assert line.endswith("leave out --opset, or ask for another")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_an_opset_that_onnx_does_not_know_is_refused(tmp_path):
    """As a mistake in the flag, whatever the model."""
    graph = "g (float[2, 2] x) => (float[2, 2] y) { y = Relu (x) }"
    onnx.save(proto(graph, 13), tmp_path / "m.onnx")
    assert "the installed onnx knows opsets up to" in failure(tmp_path / "m.onnx", "--opset", 99)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--opset", "new"), "--opset new is not one number; write --opset 17, or --opset keep"),
        (
            ("--opset", "13", "--opset", "17"),
            "--opset 13 17 is not one number; write --opset 17, or --opset keep",
        ),
        (
            ("--opset", "13", "--opset=keep"),
            "--opset 13 keep is not one number; write --opset 17, or --opset keep",
        ),
    ],
)
def test_what_is_no_opset_is_refused(flags, problem, tmp_path):
    """In one line, as any other bad input."""
    onnx.save(proto(LAYER, 17), tmp_path / "m.onnx")
    assert failure(tmp_path / "m.onnx", *flags) == f"amp-rewrite: {problem}"


def test_the_command_says_so(tmp_path):
    """In the line on the form; a saved plan gives the same result."""
    onnx.save(proto(LAYER, 17), tmp_path / "m.onnx")
    asked = ("--skip=verify", "--opset", "13", "--save-plan", tmp_path / "p.json")
    assert "form     opset set from 17 to 13, as asked" in run(tmp_path / "m.onnx", "-v", *asked).output
    run(tmp_path / "m.onnx", "--skip=verify", "--plan", tmp_path / "p.json", "-o", tmp_path / "n.onnx")
    one, other = (onnx.load(tmp_path / name) for name in ("m_fp16.onnx", "n.onnx"))
    assert one.SerializeToString() == other.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("name", real_models.NAMES)
def test_a_real_model_computes_the_same_or_is_refused(name, opset):
    """What is not refused, by a line that says why, is proved and loads."""
    runtime = pytest.importorskip("onnxruntime")
    problem = ""
    try:
        result = rewrite(onnx.load(real_models.path(name)), Options(opset=opset, storage_only=True))
    except ModelError as error:
        problem = str(error)
    else:
        assert result.report.certificate is None or result.report.certificate.proved
        assert result.model.opset_import[0].version == opset
        runtime.InferenceSession(result.model.SerializeToString())
    assert not problem or "does not stay the same from opset" in problem
