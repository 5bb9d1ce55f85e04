"""The shared models that lie beside the checkout, by name; tests that need one are skipped without them."""

import functools
import importlib.util
import json
from pathlib import Path

import pytest

from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.options import IOTypes, Options

SHARED = Path(__file__).parents[2] / "shared"
MODELS = SHARED / "models"
INDEX = json.loads((MODELS / "index.json").read_text()) if (MODELS / "index.json").is_file() else []
"""What is known of each model: its file, whether onnxruntime runs it, and where its inputs come from."""
MISSING = f"the real models are not in {MODELS}"
NAMES = """ultraface_rfb320 bigru_tagger.legacy mamba_tiny.legacy silero_vad_v6 yolox_nano
    osf_face_detection road_seg_adas_0001 silero_vad_op18_ifless plcmos_v2 bart_tiny.dynamo
    bert_tiny_qa_ort_fused clip_small.dynamo dynamo_cond_scan.dynamo llama_tiny.legacy swin2sr_x2.legacy
    scripted_greedy_decoder.legacy yolos_tiny.legacy yolox_nano_qdq gtcrn_stream_raw
    dit_small.dynamo mamba_tiny.dynamo""".split()
"""Models of all kinds, the quick ones first."""
ASKED = {
    "float16": Options(),
    "tensorflow": Options(lists=operator_lists.load("tensorflow")),
    "bfloat16": Options(half=BFLOAT16),
    "half-io": Options(io=IOTypes.HALF),
}
"""Options that decide otherwise, by a short name."""


def entry(name):
    """What the index says of a model."""
    if not INDEX:
        pytest.skip(MISSING)
    return next(each for each in INDEX if each["name"] == name)


def path(name):
    """The path of a model."""
    return MODELS / entry(name)["file"]


def feeds(name):
    """Inputs for a model, the same each time."""
    return _tools().feeds(entry(name), str(MODELS))


@functools.cache
def _tools():
    """The module that makes inputs; it lies beside the models."""
    spec = importlib.util.spec_from_file_location("model_feeds", SHARED / "tools" / "model_feeds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
