"""`--opset N`: the opset of the result, newer or older, where every node means the same."""

import onnx
import pytest

from amp_rewrite import Options, rewrite
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ModelError
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import real_models, text

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
