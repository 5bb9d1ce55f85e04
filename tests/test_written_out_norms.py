"""Norms in every spelling: results load, run and are close; on CUDA too, where onnxruntime-gpu is there."""

import onnx
import pytest

from amp_rewrite import pipeline
from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.placement.comparison import compare_placements
from amp_rewrite.policy.options import Options
from tests import cuda_sessions, norms, text
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


SHARES = 8
"""The spellings are divided among so many tests, each of which has one process that opens sessions."""


@cuda_sessions.marks
@pytest.mark.parametrize("share", range(SHARES))
def test_every_spelling_loads_on_cuda(share):
    """Whatever is asked for, with no more nodes on the CPU, copies or inserted Casts than float32 has."""
    with cuda_sessions.cuda_placer() as place:
        for spelling in SPELLINGS[share::SHARES]:
            model = norms.model(spelling)
            original = place(model)
            assert original.refused == "", spelling
            for name, options in DEMANDS.items():
                result = place(pipeline.rewrite(model, options).model)
                assert result.refused == "", (spelling, name)
                assert compare_placements(original, result).worse == (), (spelling, name)
