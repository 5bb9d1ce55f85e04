"""Results of the shared models on onnxruntime's CUDA provider; slow, and in an environment of its own."""

import json
from pathlib import Path

import pytest

from amp_rewrite import rewrite
from amp_rewrite.options import IOTypes, Level, Options
from amp_rewrite.placement import placing
from amp_rewrite.placement.differences import between
from amp_rewrite.running.sessions import Device
from tests.cuda_sessions import reason

MODELS = Path(__file__).parents[2] / "shared" / "models"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(reason()), reason=reason()),
    pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here"),
]

CASES = {
    "float16": Options(check=False),
    "bfloat16": Options(half="bfloat16", check=False),
    "tensor-cores-only": Options(level=Level.TENSOR_CORES_ONLY, check=False),
    "half inputs and outputs": Options(io=IOTypes.HALF, check=False),
}
SHARES = 8
"""The models are divided among so many tests, each of which has one process that opens sessions."""


def entries():
    """The names and paths of all shared models."""
    index = MODELS / "index.json"
    listed = json.loads(index.read_text()) if index.exists() else []
    return [(entry["name"], MODELS / entry["file"]) for entry in listed]


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
        elif worse := between(original, result).worse:
            yield case, ", ".join(map(str, worse))


@pytest.mark.parametrize("share", range(SHARES))
def test_results_load_and_are_placed_as_well_as_float32(tmp_path, share):
    """No result is refused, and none has more nodes on the CPU, copies or Casts that onnxruntime inserts."""
    found = {}
    with placing.placer(Device.CUDA) as place:
        for name, model in entries()[share::SHARES]:
            for case, complaint in complaints(place, model, tmp_path):
                found[f"{name}, {case}"] = complaint
    assert found == {}
