"""Copies of synthetic inputs, larger, smaller, longer or far from 0: a warning where the result fails."""

import numpy as np
import onnx
import pytest

from amp_rewrite import rewrite
from amp_rewrite.model import loading
from amp_rewrite.running.inputs.synthetic import Synthesis
from tests import text
from tests.commands import run

pytest.importorskip("onnxruntime")
from amp_rewrite import verify

SIZE = 256


def layers(*weights):
    """A model of matrix products, one after the other."""
    arrays = {f"w{index}": array.astype(np.float32) for index, array in enumerate(weights)}
    stored = ", ".join(f"float[{','.join(map(str, array.shape))}] {name}" for name, array in arrays.items())
    names = ["x", *"abc"[: len(weights) - 1], "y"]
    body = " ".join(f"{names[at + 1]} = MatMul ({names[at]}, w{at})" for at in range(len(weights)))
    return text.model(f"g (float[{SIZE},{SIZE}] x) => (float[{SIZE},n] y) <{stored}> {{ {body} }}", arrays)


def normal(size):
    """Weights of this size."""
    return size * np.random.default_rng(0).standard_normal((SIZE, SIZE))


LOUD = layers(normal(20), normal(0.001))
SAFE = layers(normal(0.05))


def test_what_half_computes_well_is_no_warning():
    """The changed copies pass as well, but for an offset that half inputs cannot hold: it only insures."""
    verdict = verify(SAFE, rewrite(SAFE).model)
    assert (verdict.ok, [failed for failed in verdict.stressed if failed.warns]) == (True, [])


@pytest.mark.parametrize("name", ["pixel_values", "latents", "attention_mask"])
def test_what_is_normalised_or_a_mask_stays_as_it_is(name):
    """Its name tells how large it is."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(LOUD)
    renamed.graph.input[0].name = renamed.graph.node[0].input[0] = name
    assert verify(renamed, rewrite(renamed).model).stressed == ()


# ---- open sizes that are long: a copy of synthetic inputs that is run beside them, and sums that overflow

SMALL = 0.05 * np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def attention(slope, more=""):
    """Attention with a bias of this slope on the positions of the keys, as in ALiBi."""
    return text.model(
        f"""g (float[t,8] latents) => (float[t,8] y)
            <float[8,8] w, float[512,8] table, float slope = {{{slope}}}> {{
        k = MatMul (latents, w) p = Transpose <perm = [1, 0]> (k) s = MatMul (latents, p)
        n = Shape <start = 0, end = 1> (latents) m = Squeeze (n)
        zero = Constant <value = int64 {{0}}> () one = Constant <value = int64 {{1}}> ()
        r = Range (zero, m, one) c = Cast <to = 1> (r) b = Mul (c, slope) a = Add (s, b)
        q = Softmax <axis = -1> (a) {more or "y = MatMul (q, latents)"} }}""",
        {"w": SMALL},
    )


LIMITED = "z = MatMul (q, latents) v = Gather (table, r) y = Add (z, v)"
"""With a table of 512 positions."""


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (attention(1e-5), []),
        (attention(0.05), ["as long as t = 2,048"]),
        (attention(0.02), ["as long as t = 4,096, extrapolated"]),
        (attention(0.3, LIMITED), ["as long as t = 512"]),
    ],
    ids=["accurate", "inaccurate", "less and less accurate", "up to a table's length"],
)
def test_a_length_on_which_the_result_fails_is_a_warning(tmp_path, model, changes):
    """The verdict stays good, and the line names the length."""
    onnx.save(model, tmp_path / "m.onnx")
    verdict = verify(model, rewrite(model).model)
    assert (verdict.ok, [each.change for each in verdict.stressed]) == (True, changes)
    done = run(tmp_path / "m.onnx")
    assert (done.exit_code, *(change in done.output for change in changes)) == (0, *(True for _ in changes))


@pytest.mark.parametrize("how", ["--dim", "--data"])
def test_a_length_that_is_given_is_the_one_that_counts(tmp_path, how):
    """The user knows it."""
    onnx.save(attention(0.05), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", latents=np.zeros((64, 8), np.float32) + SMALL[0])
    done = run(tmp_path / "m.onnx", how, {"--dim": "t=64", "--data": tmp_path / "in.npz"}[how])
    assert "PASS" in done.output
    assert "as long as" not in done.output


@pytest.mark.parametrize(
    ("inputs", "longer"),
    [
        ("int64[batch,seq] ids, float[batch,seq,4] x", {"seq": 512}),
        ("float[batch,3,h,w] x", None),
        ("float[?,3,?,?] x", None),
        ("float[batch,4,frames] x, float[batch,d,4] y", {"frames": 2048, "d": 512}),
        ("float[a,1024,1024] x", None),
        ("float[64,1024,1024,n] x", None),
    ],
)
def test_sizes_are_lengths_unless_they_are_batches_channels_or_sides(inputs, longer):
    """Nor is an input lengthened beyond some millions of elements."""
    model = text.unchecked(f"g ({inputs}) => (float z) {{ z = Constant <value = float {{1.0}}> () }}")
    assert Synthesis(loading.load(model).model, {}).lengthened(32) == longer
