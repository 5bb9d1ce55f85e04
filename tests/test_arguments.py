"""Options in Python, and the pass of onnx-ir. What is refused is in arguments.transcript."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from amp_rewrite import AmpPass, rewrite
from amp_rewrite.cli.flags import WordChoice
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.policy.options import Options, Pins


def test_options_are_copied_and_changed_like_any_dataclass():
    """`replace` takes the short forms too; copies and pickles are equal."""
    asked = replace(Options(follow=False), half="bfloat16", keep_io="x")
    assert asked == Options(half=BFLOAT16, follow=False, keep_io=("x",))
    assert copy.deepcopy(asked) == pickle.loads(pickle.dumps(asked)) == asked
    with pytest.raises(FrozenInstanceError):
        asked.half = FLOAT16


@pytest.mark.parametrize(
    ("field", "words", "name"),
    [
        ("half", "fp16 FP16 f16 half", "float16"),
        ("half", "bf16 BF16 bfp16", "bfloat16"),
        ("target", "trt TRT", "tensorrt"),
        ("target", "cuda gpu ort onnxruntime", "onnxruntime-cuda"),
        ("target", "webgpu web", "onnxruntime-webgpu"),
        ("io", "half HALF", "half"),  # its own name comes first
    ],
)
def test_other_names_are_understood(field, words, name):
    """In Python, and by the flag of the command line."""
    own = getattr(Options(**{field: name}), field)
    assert all(getattr(Options(**{field: word}), field) is own for word in words.split())
    kind = WordChoice([name])
    assert {kind.convert(word, None, None) for word in words.split()} == {name}


# ---- the rewrite as a pass of onnx-ir

TEXT = """<ir_version: 9, opset_import: ["": 17]> g (float[4,4] x) => (float[4,4] y) {
    [product] a = MatMul (x, x) [sum] y = Add (a, a) }"""


@pytest.fixture
def model():
    """A model of onnx-ir's."""
    return ir.from_proto(parser.parse_model(TEXT))


def as_bytes(model):
    """A model as bytes, to compare."""
    return ir.to_proto(model).SerializeToString(deterministic=True)


def test_the_pass_gives_what_the_rewrite_gives(model):
    """The pass is the rewrite: a new model, with `modified` set, and the old one as it was."""
    before = as_bytes(model)
    result = AmpPass()(model)
    assert result.modified
    assert as_bytes(result.model) == as_bytes(rewrite(model).model)
    assert as_bytes(model) == before
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)


def test_the_pass_takes_options(model):
    """Options hold for the pass; where nothing changes, it says so."""
    result = AmpPass(Options(pins=Pins(keep_full=(".*",))))(model)
    assert not result.modified
    assert as_bytes(result.model) == as_bytes(model)


def test_a_second_pass_changes_nothing(model):
    """In a sequence of passes that runs until nothing changes, this one comes to rest."""
    once = AmpPass()(model).model
    assert not AmpPass()(once).modified
