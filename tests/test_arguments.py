"""Options in Python: the short forms that they take. What is refused is in arguments.transcript."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from amp_rewrite.cli.flags import WordChoice
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.policy.options import Options


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
