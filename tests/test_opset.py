"""`--opset N`: what is said of it, and real models; `opset.cases` has the rest."""

import onnx
import pytest

from amp_rewrite import Options, rewrite
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ModelError
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import real_models, text


@pytest.mark.parametrize(("old", "new"), [(13, 22), (17, 17)])
def test_a_change_is_reported_and_licensed(old, new):
    """What is at that opset already has no such change."""
    source = "g (float[4,8] x) => (float[4,8] y) <float[8,8] w> { y = MatMul (x, w) }"
    model = text.unchecked(f'<ir_version: 8, opset_import: ["" : {old}]> {source}')
    report = rewrite(model, Options(opset=new)).report
    change = FormChange(FormChangeKind.OPSET_SET, before=old, after=new)
    assert report.form_changes == ((change,) if old != new else ())
    assert (Licence.OPSET in report.certificate.licences) == (old != new)


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
