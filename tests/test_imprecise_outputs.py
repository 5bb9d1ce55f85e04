"""Outputs that half stores badly: their last products stay float32, where that brings them nearer. Which
these are is in imprecise_outputs.models, which is written as cases are (tests/case_files.py).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.cli.decisions import options_of
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.policy.options import Options, Pins
from tests import case_files, commands, text
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
CASES = list(case_files.read(Path(__file__).with_name("imprecise_outputs.models")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_nodes_from_the_last_products_on_stay(case):
    """The nodes that are float32 for an output are those that are claimed, and they say for which."""
    claims = {output: nodes for output, *nodes in (claim.split() for claim in case.claims)}
    imprecise = dict.fromkeys(claims, 0.01)
    made = amp_rewrite.analyze(text.model(case.model), options_of(case.flags), imprecise_outputs=imprecise)
    held = {output: [] for output in claims}
    for unit in made.graph.units:
        evidence = made.painting.entries[unit.index].evidence
        if evidence.reason is Reason.IMPRECISE_OUTPUT:
            held[evidence.subject].append(unit.node.name)
    assert held == claims


# ---- the main job


def mended(proto, options=None, sample=SAMPLE, *, repairs=True):
    """The outcome of the main job on a model in memory, and the imprecise outputs of each of its rewrites."""
    work = OnSamples(proto, sample, repairs=repairs)
    return repaired(work, options), [dict(settings.imprecise_outputs) for settings in work.asked]


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
    assert nearer.result.report.imprecise_outputs == {"y": floor}
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
    assert outcome.result.report.imprecise_outputs == {}
    assert [sorted(outputs) for outputs in asked] in ([[]], [[], ["y"], []])


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
    assert [sorted(outputs) for outputs in asked] == [[], ["y"], []]
    assert outcome.result.model == plain.result.model
    assert outcome.verification == plain.verification
    assert outcome.result.report.imprecise_outputs == {}


def test_elements_of_sequences_stay_as_they_are():
    """A sequence has an error for each element, which no product before it is kept for."""
    body = "[s] y = SequenceConstruct (b)"
    proto = text.model(
        f"""g (float[8,8] x) => (seq(float[8,8]) y) <float[8,8] v, float[8,8] w> {{
        [first] a = MatMul (x, v) [last] b = MatMul (a, w) {body} }}""",
        WEIGHTS,
    )
    outcome, asked = mended(proto)
    assert [sorted(outputs) for outputs in asked] == [[], ["y[0]"], []]
    assert outcome.result.report.imprecise_outputs == {}


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
