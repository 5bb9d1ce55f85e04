"""Outputs that half stores badly: their last products stay float32, where that brings them nearer."""

import json
from pathlib import Path

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.policy.operator_lists import Kind, load
from amp_rewrite.policy.options import IOTypes, Level, Options, Pins
from tests import commands, text
from tests.repairs import OnSamples, repaired

pytest.importorskip("onnxruntime")

FAINT = """g (float[8,8] x) => (float[8,8] y, float[8,8] loud) <float[8,8] v, float[8,8] w, float[8,8] u> {
    [first] a = MatMul (x, v) [loud] loud = MatMul (x, u)
    [last] b = MatMul (a, w) [shape] c = Transpose (b) [bounded] y = Tanh (c) }"""
"""The values of `y` are about 3e-7: all are below the normal numbers of float16."""
NUMBERS = np.random.default_rng(0)
SCALES = {"v": 2e-4, "w": 2e-4, "u": 1.0}
WEIGHTS = {n: np.float32(scale * NUMBERS.standard_normal((8, 8))) for n, scale in SCALES.items()}
SAMPLE = {"x": np.float32(NUMBERS.standard_normal((8, 8)))}
CHAIN = "".join(f"[n{i}] v{i} = Tanh (v{i - 1})" for i in range(1, 20))


def held(body, faint=("y",), options=None, outputs="float[4,4] y"):
    """The nodes that stay float32 for a faint output, with the output."""
    proto = text.model(f"g (float[4,4] x, bool k) => ({outputs}) <float[4,4] w> {{ {body} }}")
    made = amp_rewrite.analyze(proto, options, imprecise_outputs=dict.fromkeys(faint, 0.01))
    entries = made.painting.entries
    found = {unit.node.name: entries[unit.index].evidence for unit in made.graph.units}
    return {name: why.subject for name, why in found.items() if why.reason is Reason.FAINT_OUTPUT}


@pytest.mark.parametrize(
    ("body", "nodes"),
    [
        ("[a] a = MatMul (x, w) [b] y = MatMul (a, w)", "b"),
        ("[a] a = MatMul (x, w) [b] b = Relu (a) [c] c = Reshape (b, s) [d] y = Tanh (c)", "a b c d"),
        ("[a] a = MatMul (x, w) [b] b = MatMul (a, w) [c] y = Add (a, b)", "a b c"),  # a residual
        ("[a] a = MatMul (x, w) [b] y = Softmax (a)", "b"),  # sums by itself
        ("[a] a = MatMul (x, w) [b] b = ReduceMean <axes = [1]> (a) [c] y = Mul (b, x)", "b c"),
        ("[a] a = MatMul (x, w) [b] b, c = Split <axis = 0> (a) [c] y = Concat <axis = 0> (b, c)", "a b c"),
        (f"[n0] v0 = MatMul (x, w) {CHAIN} [end] y = Tanh (v10)", "n0 n1 n2 n3 n4 n5 n6 n7 n8 n9 n10 end"),
        (f"[n0] v0 = MatMul (x, w) {CHAIN} [end] y = Tanh (v19)", ""),  # no short way from the product
        ("[a] a = MatMul (x, w) [b] y = com.microsoft.Gelu (a)", "a b"),
    ],
)
def test_the_nodes_from_the_last_products_on_stay(body, nodes):
    """Products, reductions and norms with what works element by element behind them; nothing before them."""
    if "(b, s)" in body:
        body = "s = Constant <value = int64[2] {4, 4}> () " + body
    assert set(held(body)) == set(nodes.split())


def test_each_output_has_its_own():
    """Only the outputs that are named, and the nodes say which."""
    body = "[a] a = MatMul (x, w) [b] y = MatMul (a, w) [c] z = MatMul (a, w)"
    both = "float[4,4] y, float[4,4] z"
    assert held(body, "y", outputs=both) == {"b": "y"}
    assert held(body, "yz", outputs=both) == {"b": "y", "c": "z"}


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        (Options(), "ab"),
        (Options(pins=Pins(force_half="a")), "b"),
        (Options(pins=Pins(force_half=".*")), ""),
        (Options(lists=load("default").override(Kind.ALLOW, ["MatMul"])), "b"),
        (Options(level=Level.UNSAFE_FORCE_ALL), ""),
        (Options(io=IOTypes.HALF), ""),
        (Options(io=IOTypes.HALF, keep_io="y"), "ab"),
    ],
)
def test_the_user_decides(options, stays):
    """Pins, operators and levels count as ever; an output that is half itself is rounded all the same."""
    body = "[before] v = MatMul (x, w) [a] a = MatMul (v, w) [b] y = Tanh (a)"
    assert set(held(body, options=options)) == set(stays)


# ---- the main job


def mended(proto, options=None, sample=SAMPLE, *, repairs=True):
    """The outcome of the main job on a model in memory, and the faint outputs of each of its rewrites."""
    work = OnSamples(proto, sample, repairs=repairs)
    return repaired(work, options), [dict(settings.faint) for settings in work.asked]


def differences(outcome):
    """The relative L2 error of each output."""
    return {output.name: output.metrics.relative_l2 for output in outcome.verification.outputs}


def test_a_faint_output_is_brought_nearer():
    """The last products before it stay float32: what is left is the error of what they read."""
    proto = text.model(FAINT, WEIGHTS)
    plain, _ = mended(proto, repairs=False)
    nearer, asked = mended(proto)
    floor = {output.name: output.floor for output in plain.verification.outputs}["y"]
    assert asked == [{}, {"y": floor}]
    assert floor == pytest.approx(differences(plain)["y"], rel=0.2)
    assert floor > 1e-2 > 1e-3 > differences(nearer)["y"]
    assert differences(nearer)["loud"] == differences(plain)["loud"]
    assert nearer.result.report.faint == {"y": floor}
    assert (plain.result.report.nodes.full, nearer.result.report.nodes.full) == (0, 3)
    assert mended(proto)[0].result.model == nearer.result.model


@pytest.mark.parametrize(
    "options",
    [
        Options(half=BFLOAT16),
        Options(pins=Pins(keep_full="last|shape|bounded")),
        Options(pins=Pins(force_half=".*")),
    ],
)
def test_nothing_is_mended_in_vain(options):
    """Not where half has the range, where the output is float32, and where the user forces it into half."""
    outcome, asked = mended(text.model(FAINT, WEIGHTS), options)
    assert outcome.result.report.faint == {}
    assert [sorted(faint) for faint in asked] in ([[]], [[], ["y"], []])


IF = """g (float[8,8] x, bool k) => (float[8,8] y) <float[8,8] v, float[8,8] w> {
    [first] a = MatMul (x, v)
    [if] y = If (k) <then_branch = t () => (float[8,8] s) { [then] s = MatMul (a, w) },
                     else_branch = e () => (float[8,8] r) { [else] r = MatMul (a, w) }> }"""
"""An If is no product: in float32 it returns what its branches have rounded."""


def test_what_does_not_help_is_taken_back():
    """Where the output is no nearer, the result is what it was."""
    proto = text.model(IF, WEIGHTS)
    sample = {**SAMPLE, "k": np.array(True)}
    plain, _ = mended(proto, repairs=False, sample=sample)
    outcome, asked = mended(proto, sample=sample)
    assert [sorted(faint) for faint in asked] == [[], ["y"], []]
    assert outcome.result.model == plain.result.model
    assert outcome.verification == plain.verification
    assert outcome.result.report.faint == {}


def test_elements_of_sequences_stay_as_they_are():
    """A sequence has an error for each element, which no product before it is kept for."""
    body = "[s] y = SequenceConstruct (b)"
    proto = text.model(
        f"""g (float[8,8] x) => (seq(float[8,8]) y) <float[8,8] v, float[8,8] w> {{
        [first] a = MatMul (x, v) [last] b = MatMul (a, w) {body} }}""",
        WEIGHTS,
    )
    outcome, asked = mended(proto)
    assert [sorted(faint) for faint in asked] == [[], ["y[0]"], []]
    assert outcome.result.report.faint == {}


MODELS = Path(__file__).parents[2] / "shared/models"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "floor", "error"),
    [("hifigan_vocoder.dynamo", 5e-2, 8e-3), ("depth_anything_tiny.legacy", 4e-3, 1e-3)],
)
def test_real_models(name, floor, error, tmp_path):
    """A vocoder and a depth estimator, on synthetic inputs: 7e-2 and 7e-3 are 7e-3 and 7e-4 then."""
    source, report = MODELS / name / "model.onnx", tmp_path / "report.json"
    if not source.exists():
        pytest.skip(f"{source} is missing")
    result = commands.run(source, "-o", tmp_path / "half.onnx", "--json", report)
    assert result.exit_code == 0, result.output
    (output,) = json.loads(report.read_text())["verification"]["outputs"]
    assert output["floor"] > floor > error > output["metrics"]["relative_l2"]
