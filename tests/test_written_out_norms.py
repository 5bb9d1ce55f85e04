"""Norms in every spelling: results load, run and are close; on CUDA too, where onnxruntime-gpu is there.

What is predicted of them: one kernel where onnxruntime fuses them, else one for each node.
"""

import onnx
import pytest
from onnx import numpy_helper

from amp_rewrite import pipeline
from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.policy.options import Options, Pins
from tests import cuda_sessions, norms, text
from tests.norms import Spelling
from tests.sampling import every

SPELLINGS = [*dict.fromkeys([*norms.spellings(17), *norms.spellings(13, 20)])]


@pytest.mark.parametrize("spelling", every(11, SPELLINGS))
def test_a_norm_is_one_decision(spelling):
    """It is recognised; nothing between its data and its result is half; the result loads and is close."""
    model = norms.model(spelling)
    onnx.checker.check_model(model, full_check=True)
    analysis = pipeline.analyze(model)
    graph, painting = analysis.graph, analysis.painting
    inner = {unit for unit, spelled in graph.spelled.items() if spelled.part is not Part.OUTER}
    roots = [unit.node for unit in graph.units if unit.node.op_type in ("Sqrt", "Pow")]
    assert {graph.units[unit].node for unit in inner}.issuperset(roots)
    assert not any(map(painting.is_half, inner))
    result = pipeline.rewrite(model)
    text.agree(model, result.model, 3e-2)
    assert pipeline.rewrite(result.model).model == result.model


DEMANDS = {
    "float16": Options(),
    "bfloat16": Options(half="bfloat16"),
    "tensor cores only": Options(level="tensor-cores-only"),
    "tensor cores only, bfloat16": Options(half="bfloat16", level="tensor-cores-only"),
    "infer as deny": Options(level="treat-infer-as-deny"),
    "forced": Options(level="unsafe-force-all"),
    "half inputs and outputs": Options(io="half"),
    "bfloat16 inputs and outputs": Options(half="bfloat16", io="half"),
}


ONE_KERNEL = ["centred", "mean"]
CASTS = [
    *((Spelling(kind), 2) for kind in ONE_KERNEL),
    *((Spelling(kind, root="sqrt-reciprocal-mul"), 2) for kind in ONE_KERNEL),
    *((Spelling(kind, axes=(2,), twice=True), 2) for kind in ONE_KERNEL),
    *((Spelling(kind, beside="residual"), 3) for kind in ONE_KERNEL),
    (Spelling("mean", bias=False), 2),
    (Spelling("centred", bias=False), 3),  # the mean is taken apart
    *((Spelling(kind, axes=(-2, -1)), 4) for kind in norms.KINDS),
    *((Spelling(kind, axes=(1,)), 4) for kind in norms.KINDS),
    *((Spelling(kind, weight=False), 4) for kind in norms.KINDS),
    *((Spelling(kind, root="pow-mul"), 4) for kind in norms.KINDS),
    *((Spelling(kind, bound="max"), 4) for kind in norms.KINDS),
    (Spelling("sum"), 4),
]


def predicted(model, **asked):
    """The predicted time of a run of the result."""
    return pipeline.rewrite(model, Options(**asked)).report.prediction.result


@pytest.mark.parametrize(("spelling", "casts"), CASTS, ids=str)
def test_casts_of_norms(spelling, casts):
    """Those within a fused norm do not run; all others do, beside those at both ends of the model."""
    assert predicted(norms.model(spelling)).casts == casts


def test_a_weight_of_two_axes_is_not_fused():
    """Its norm runs node by node, in float32, between two Casts."""
    plain, wide = norms.model(Spelling("mean")), norms.model(Spelling("mean"))
    (weight,) = (node.input[1] for node in wide.graph.node if node.name == "mul_6")
    (stored,) = (tensor for tensor in wide.graph.initializer if tensor.name == weight)
    stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored)[None], weight))
    onnx.checker.check_model(wide, full_check=True)
    assert (predicted(plain).casts, predicted(wide).casts) == (2, 4)
    assert predicted(wide).launches == predicted(plain).launches + 2 + 5


def test_a_norm_of_float32_data_needs_no_cast():
    """A fused kernel takes data and weights of two types; what follows is half."""
    given = norms.model(Spelling("mean", source="input"))
    assert predicted(given, pins=Pins(force_half="mul_5|add_6")).casts == 1


SHARES = 4
"""The spellings are divided among so many tests, each of which has one process that opens sessions."""


@cuda_sessions.marks
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("share", range(SHARES))
def test_predicted_casts_run(share, half):
    """As many Casts run on CUDA as are predicted; onnxruntime merges those of two norms that are the same."""
    with cuda_sessions.cuda_placer() as place:
        for spelling in SPELLINGS[share::SHARES]:
            result = pipeline.rewrite(norms.model(spelling), Options(half=half))
            merged = 1 if spelling.kind == "sum" and spelling.beside == "norm" else 0
            told = result.report.prediction
            casts = told.result.casts if told is not None else 0
            assert place(result.model).float_casts == casts - merged, spelling


@cuda_sessions.marks
@pytest.mark.parametrize("share", range(2 * SHARES))
def test_every_spelling_loads_on_cuda(share):
    """Whatever is asked for, with no more nodes on the CPU, copies or inserted Casts than float32 has."""
    with cuda_sessions.cuda_placer() as place:
        for spelling in SPELLINGS[share :: 2 * SHARES]:
            model = norms.model(spelling)
            original = place(model)
            assert original.refused == "", spelling
            for name, options in DEMANDS.items():
                result = place(pipeline.rewrite(model, options).model)
                assert result.refused == "", (spelling, name)
                assert cuda_sessions.worsened(original, result) == [], (spelling, name)
