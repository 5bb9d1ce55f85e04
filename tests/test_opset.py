"""`--opset N` of real models; `opset.cases` has the rest."""

import onnx
import pytest

from amp_rewrite import Options, rewrite
from amp_rewrite.errors import ModelError
from tests import real_models


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
