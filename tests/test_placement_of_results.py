"""Results of the shared models on onnxruntime's CUDA provider; slow, and in an environment of its own."""

import pytest

from amp_rewrite import rewrite
from amp_rewrite.options import IOTypes, Level, Options
from tests.cuda_sessions import MARKS, cuda_placer, worsened
from tests.real_models import INDEX, MISSING, MODELS

pytestmark = [
    *MARKS,
    pytest.mark.skipif(not INDEX, reason=MISSING),
]

HALF_IO = "half inputs and outputs"

CASES = {
    "float16": Options(check=False),
    "bfloat16": Options(half="bfloat16", check=False),
    "tensor-cores-only": Options(level=Level.TENSOR_CORES_ONLY, check=False),
    HALF_IO: Options(io=IOTypes.HALF, check=False),
}
KNOWN = {
    # a half input or output of a node on the CPU is cast on the GPU, as was asked for
    f"onnx_lstm_with_peepholes, {HALF_IO}": "copies 0 -> 8",
    f"onnx_nonmaxsuppression_two_classes, {HALF_IO}": "copies 0 -> 2",
    f"onnx_resize_upsample_scales_cubic, {HALF_IO}": "copies 0 -> 1",
    f"onnx_stft_with_window, {HALF_IO}": "copies 0 -> 3",
    f"skl_random_forest, {HALF_IO}": "copies 0 -> 2",
    f"skl_svc_zipmap, {HALF_IO}": "copies 1 -> 2",
    f"skl_tfidf_text, {HALF_IO}": "copies 2 -> 3",
    # a Cast keeps a Transpose from a FusedMatMul, and onnxruntime moves it past a Shape, of which it gathers
    "bert_tiny_qa.legacy, tensor-cores-only": "nodes on the CPU 38 -> 40",
    "bert_tiny_qa_dynamic_int8, tensor-cores-only": "nodes on the CPU 60 -> 62",
}
"""What is worse, and stays so."""

SHARES = 8
"""The models are divided among so many tests, each of which has one process that opens sessions."""


def complaints(place, model, scratch):
    """What is wrong with the results of a model that loads in float32, by case."""
    original = place(model, None)
    if original.refused:
        return
    for case, options in CASES.items():
        rewrite(model, options, output=scratch / "result.onnx")
        result = place(scratch / "result.onnx", None)
        if result.refused:
            yield case, f"does not load: {result.refused}"
        elif worse := worsened(original, result):
            yield case, ", ".join(worse)


@pytest.mark.parametrize("share", range(SHARES))
def test_results_load_and_are_placed_as_well_as_float32(tmp_path, share):
    """No result is refused, and none has more nodes on the CPU, copies or Casts that onnxruntime inserts;
    what is known to be worse may become better.
    """
    found = {}
    with cuda_placer() as place:
        for name, model in [(entry["name"], MODELS / entry["file"]) for entry in INDEX][share::SHARES]:
            for case, complaint in complaints(place, model, tmp_path):
                found[f"{name}, {case}"] = complaint
    assert {case: complaint for case, complaint in found.items() if KNOWN.get(case) != complaint} == {}
