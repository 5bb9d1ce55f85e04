"""The bits of Max and Min in place of a Clip; `opset_raising.cases` has the rest."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import rewrite
from amp_rewrite.errors import ModelError
from amp_rewrite.policy.options import Options
from amp_rewrite.preparing import operator_forms
from tests import real_models, text

SPECIAL = np.array([np.nan, np.inf, -np.inf, -3, -0.0, 0, 1e-45, 3, 6, 7, 3.4e38, -3.4e38], np.float32)


@pytest.mark.parametrize("opset", [8, 10, 11, 13])
@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 6.0), (0.0, 6.0), (None, 6.0), (-2.5, None), (None, None), (-3.4e38, 1e38)]
)
def test_both_give_the_same_bits(opset, low, high):
    """NaN, infinities and missing bounds included; but for the sign of a zero at a bound that is zero."""
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = _between_products(opset, low, high)
    model = text.unchecked(f'<ir_version: 7, opset_import: ["" : {opset}]> {graph}')
    prepared = ir.from_proto(model)
    options = Options(half="bfloat16") if opset > 11 else Options()
    assert len(operator_forms.rewrite_clips(prepared, options.form)) == 1
    before, after = (_run(onnxruntime, each) for each in (model, ir.to_proto(prepared)))
    if low == 0:
        before, after = before + np.float32(0), after + np.float32(0)  # -0.0 + 0.0 is 0.0
    assert before.tobytes() == after.tobytes()


def _between_products(opset, low, high):
    given = {"min": low, "max": high}
    if opset < 11:
        stated = ", ".join(f"{name} = {value}" for name, value in given.items() if value is not None)
        call, stored = f"Clip <{stated}> (a)" if stated else "Clip (a)", ""
    else:
        names = {name: f"k{name}" for name, value in given.items() if value is not None}
        made = [f"{names[n]} = Constant <value = float {{{given[n]}}}> ()" for n in names]
        call, stored = f"Clip (a, {names.get('min', '')}, {names.get('max', '')})", " ".join(made)
    return f"""g (float[12, 1] x) => (float[12, 1] b, float[12, 1] y) <float[1, 1] w = {{1}}> {{
        {stored} a = MatMul (x, w) b = {call} y = MatMul (b, w) }}"""


def _run(onnxruntime, model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(["b"], {"x": SPECIAL.reshape(12, 1)})[0]


# ---- `--opset N` of real models


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
