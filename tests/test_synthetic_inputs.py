"""Inputs synthesised from the model alone; the models and what is claimed of their inputs are in
synthetic.inputs, which is written as cases are (tests/case_files.py).
"""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.parser import parse_model

from amp_rewrite.errors import FeedError
from tests import case_files
from tests.commands import every
from tests.sessions import Runtime
from tests.text import model, unchecked

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs.feeds import Data, feeds

SHARED = Path(__file__).parents[2] / "shared" / "models"
RUNTIME = Runtime()


CASES = list(case_files.read(Path(__file__).with_name("synthetic.inputs")))


def made(text, **asked):
    """The first synthetic sample for a model in ONNX text."""
    return next(feeds(unchecked(text), Data(**asked)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_synthetic_inputs_of_a_model(case):
    """What the case claims of its inputs holds, and the model runs on them, with finite outputs."""
    dims = {name: int(size) for name, size in re.findall(r"--dim (\S+?)=(\d+)", case.flags)}
    claims = dict(claim.split(" ", 1) for claim in case.claims if not claim.startswith("images"))
    if "refused" in claims:
        with pytest.raises(FeedError, match=re.escape(claims["refused"])):
            made(case.model, dims=dims)
        return
    sample = made(case.model, dims=dims)
    runs = "not" not in claims or claims.pop("not") == ""
    for name, claim in claims.items():
        assert holds(sample[name], claim), f"{name} {claim}: {sample[name]}"
    ran = RUNTIME.run(unchecked(case.model).SerializeToString(), dict(sample)) if runs else None
    assert ran is None or (not ran.failure and all(map(is_finite, ran.values.values()))), ran


def holds(array, claim):
    """Whether an array is what is claimed of it: its type first, where that is claimed too."""
    verb, _, rest = claim.partition(" ")
    if verb in CLAIMS:
        return CLAIMS[verb](array, rest)
    if ".." in verb:
        low, high = map(float, verb.split(".."))
        return low <= array.min() <= array.max() <= high and (array.size == 1 or array.min() < array.max())
    if verb[0].isdigit():
        return array.shape == tuple(map(int, verb.split("x")))
    return array.dtype.name == verb and holds(array, rest)


def are(array, said):
    """Whether the elements are these, or all are this one."""
    texts = [str(int(each)) if array.dtype.kind in "biuf" else each for each in array.ravel().tolist()]
    return said == " ".join(texts) or {said} == {*texts}


def is_normal(array):
    """Whether the mean is about 0, and the standard deviation about 1."""
    numbers = array.astype(float)
    return abs(numbers.mean()) < 0.2 and 0.8 < numbers.std() < 1.2


def is_voice(array):
    """Whether a spectrum has harmonics, and part of the array is silent; noise is neither."""
    frames = array.reshape(-1)[:7936].reshape(-1, 256)
    loudness = np.sqrt(np.mean(frames**2, axis=1))
    spectrum = np.abs(np.fft.rfft(frames[0]))
    is_loud = 0 < loudness.min() < loudness.max() / 50
    return is_loud and np.median(spectrum) < spectrum.max() / 20


CLAIMS = {
    "=": are,
    "from": lambda array, said: f"{array.min()} to {array.max()}" == said,
    "below": lambda array, said: array.min() < float(said),
    "normal": lambda array, _: is_normal(array),
    "voice": lambda array, _: is_voice(array),
}
"""Beside a type, a shape as 2x3, and bounds as 0.1..1."""


def is_finite(value):
    """Whether an output has no NaN and no infinity, if it is a tensor of floats."""
    return getattr(value, "dtype", np.dtype("i")).kind != "f" or np.isfinite(value).all()


# --- sizes


def test_none_is_not_a_name():
    """Exporters write it for unnamed dimensions: two of these need not have the same size."""
    proto = model("g (float[a, 4, b] x) => (float[a, 4, b] y) { y = Relu (x) }")
    for axis in (0, 2):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "None"
    assert next(feeds(proto, Data()))["x"].shape == (1, 4, 16)


@pytest.mark.parametrize(
    ("formula", "size"),
    [
        ("2*n - 1", 9),
        ("(n + 1)/2", 3),
        ("(n + 2)/2", 3),
        ("n // 2 + 0", 2),
        ("ceil(n * 2)", 16),
        ("n**9**9**9", 16),
    ],
)
def test_formulas_are_evaluated(formula, size):
    """A formula of other dimensions is evaluated, and every division rounded down; a malformed one, or one
    with a power, which may take all memory, gets the default size.
    """
    proto = model("g (float[n] x, float[b, f] z) => (float[n] y) { y = Relu (x) }")
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = formula
    assert next(feeds(proto, Data(dims={"n": 5})))["z"].shape[1] == size


CACHED = """
g (int64[batch, seq] input_ids, int64[batch, {total}] attention_mask, float[batch, 2, {past}, 4] past_key)
=> (int64[batch, seq] a, int64[batch, m] b, float[batch, 2, p, 4] c) {{
    a = Identity (input_ids) b = Identity (attention_mask) c = Identity (past_key)
}}"""


@pytest.mark.parametrize(
    ("past", "total"),
    [("past", "total"), ("kv", "all"), ("?", "?"), ("past", "past + seq"), ("5", "everything")],
)
def test_a_mask_covers_the_past(past, total):
    """The mask of a model with a cache is as long as the past and new tokens together."""
    proto = model(CACHED.format(total="formula", past=past))
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = total.strip("?")
    sample = next(feeds(proto, Data()))
    tokens, mask, cached = (sample[name] for name in ("input_ids", "attention_mask", "past_key"))
    assert mask.shape[1] == tokens.shape[1] + cached.shape[2] > tokens.shape[1]
    assert mask.all()
    assert not cached.any()


# --- numbers


def test_the_seed_determines_the_samples():
    """The same seed gives the same sample; another seed or the next sample has other numbers."""
    proto = model("g (float[100] x) => (float[100] y) { y = Relu (x) }")
    first, second = (f["x"] for f in feeds(proto, Data(samples=2)))
    again, other = next(feeds(proto, Data()))["x"], next(feeds(proto, Data(seed=1)))["x"]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_additional_input_does_not_change_the_others():
    """Each input has its own random number generator."""
    alone = made("g (float[9] x) => (float[9] y) { y = Relu (x) }")
    beside = made("g (float[9] a, float[9] x) => (float[9] y) { y = Add (a, x) }")
    np.testing.assert_array_equal(alone["x"], beside["x"])
    assert not np.array_equal(beside["a"], beside["x"])


# --- which inputs


CHOICE = """g (float[2] x, bool[1] use_cache_branch, bool[2] mask) => (float[2] y) {
    low = Where (mask, x, x)
    y = If (use_cache_branch) <
        then_branch = t () => (float[2] a) { a = Relu (low) },
        else_branch = e () => (float[2] b) { b = Neg (low) }>
}"""


@pytest.mark.parametrize(("asked", "chosen"), [(1, [True, False]), (3, [True, False, True])])
def test_both_branches_run(asked, chosen):
    """A truth value that chooses a branch takes turns, in two samples at least; others are true."""
    samples = list(feeds(model(CHOICE), Data(samples=asked)))
    assert [sample["use_cache_branch"].item() for sample in samples] == chosen
    assert all(sample["mask"].all() for sample in samples)


def test_weights_are_not_synthesised():
    """IR 3 lists weights as inputs; from IR 4 on they are defaults, which are kept."""
    for version in (3, 8):
        proto = model("g (float[2, 3] x) => (float[2, 4] y) <float[3, 4] w> { y = MatMul (x, w) }")
        proto.ir_version = version
        proto.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4]))
        assert list(next(feeds(proto, Data()))) == ["x"]


def test_sequences_and_optionals():
    """A sequence is a short list of tensors, and an optional is not empty."""
    text = """g (seq(float[n, 3]) s, optional(float[4]) o) => (float[m, 3] y, bool z) {
        y = ConcatFromSequence <axis = 0> (s) z = OptionalHasElement (o) }"""
    proto = parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    sample = next(feeds(proto, Data(dims={"n": 5})))
    assert [array.shape for array in sample["s"]] == [(5, 3), (5, 3)]
    assert sample["o"].shape == (4,)


def test_what_cannot_be_synthesised_says_how_to_give_it():
    """For an input without a rank or not a tensor, the error has its name and the field that helps."""
    proto = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(FeedError, match=r"input 'x' has no shape .*; give it with `Data.paths`"):
        next(feeds(proto, Data()))
    proto.graph.input[0].type.map_type.key_type = onnx.TensorProto.INT64
    with pytest.raises(FeedError, match=r"input 'x' is not a tensor.*; give it with `Data.paths`"):
        next(feeds(proto, Data()))


# --- real models


def entries():
    """The models of the index that onnxruntime runs; empty if they are not there."""
    index = SHARED / "index.json"
    found = json.loads(index.read_text()) if index.is_file() else []
    return every(4, [entry for entry in found if entry["runs"]], lambda entry: entry["name"])


@pytest.mark.parametrize("entry", entries())
def test_real_models_run_on_synthetic_inputs(entry):
    """Every model that runs at all runs on synthetic inputs."""
    path = SHARED / entry["file"]
    ran = RUNTIME.run(str(path), dict(next(feeds(path, Data()))))
    assert not ran.failure
    masked = "qk_matmul_output"  # is minus infinity where a causal mask hides it
    assert all(is_finite(array) for name, array in ran.values.items() if name != masked)


@pytest.mark.parametrize("size", ["1", "n"])
def test_more_dimensions_than_numpy_has(size):
    """An input of rank 65 is refused, however small; the line does not list its dimensions."""
    dims = ", ".join([size] * 65)
    with pytest.raises(FeedError, match="input 'x' has 65 dimensions, and NumPy has at most 64; export"):
        made(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu (x) }}")
