"""What a valid half model must avoid because a runtime would fail on it."""

import onnx
import pytest

from amp_rewrite import analyze
from amp_rewrite.policy import targets
from amp_rewrite.policy.options import Level, Options
from tests.text import agree, in_half, kept, model, rewritten


@pytest.mark.parametrize(("reduction", "stays"), [("none", False), ("add", True), ("max", True)])
def test_a_scatter_that_reduces_stays(reduction, stays):
    """Placing elements is half; adding them to those that are there has no half kernel on the CPU."""
    before = f"""g (float[4,4] x, int64[1,1] i) => (float[4,4] y) <float[4,4] w, float[1,4] u> {{
        m = MatMul (x, w)
        s = ScatterND <reduction = "{reduction}"> (m, i, u)
        y = MatMul (s, w)
    }}"""
    assert ("s" in kept(before)) == stays
    assert ("s" in in_half(before)) != stays


@pytest.mark.parametrize("target", targets.BY_NAME)
@pytest.mark.parametrize(("reduction", "stays"), [("none", False), ("add", True), ("mul", True)])
@pytest.mark.parametrize("scatter", ["ScatterND", "ScatterElements"])
def test_a_scatter_that_accumulates_stays_on_every_target(scatter, reduction, stays, target):
    """Runtimes add one by one: in half a count ends at 2048."""
    width = 4 if scatter == "ScatterND" else 1
    before = f"""g (float[4,4] x, int64[1,1] i) => (float[4,4] y) <float[4,4] w, float[1,{width}] u> {{
        m = MatMul (x, w)
        s = {scatter} <reduction = "{reduction}"> (m, i, u)
        y = MatMul (s, w)
    }}"""
    assert ("s" in kept(before, Options(target=target))) == stays


ATTENTION = """<ir_version: 11, opset_import: ["": 24]>
g (float[1,2,4,4] x, {mask}[4,4] m, int64[1] n) => (float[1,2,4,4] z, float[1,2,4,4] y) {{
    [attend] {made} = Attention <qk_matmul_output_mode = {mode}, is_causal = {causal}> ({read}) }}"""
SHOWN = {"made": "z, p, q, y", "mode": 2, "causal": 1, "mask": "float", "read": "x, x, x"}
MASKED = {"causal": 0, "read": "x, x, x, m"}
PADDED = {"causal": 0, "read": "x, x, x, , , , n"}


@pytest.mark.parametrize(
    ("said", "stays"),
    [
        ({}, True),
        ({"mode": 1}, True),
        ({"mode": 0}, False),
        ({"mode": 3}, False),
        ({"made": "z"}, False),
        ({"causal": 0}, False),
        (MASKED, False),
        (MASKED | {"mask": "bool"}, True),
        (PADDED, True),
    ],
)
def test_an_attention_that_shows_its_masked_scores_stays(said, stays):
    """Its fourth output holds the lowest number of the type; nobody who reads it would know that of half."""
    found = analyze(onnx.parser.parse_model(ATTENTION.format(**SHOWN | said)))
    halves = [found.painting.is_half(unit.index) for unit in found.graph.units]
    assert any(halves) != stays


EYE = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
    m = MatMul (x, w)
    e = EyeLike (m)
    y = MatMul (e, w)
}"""


def test_faults_are_those_of_a_target():
    """For a runtime without faults nothing stays; and forcing everything does not force a crash."""
    assert "e" in kept(EYE)
    assert kept(EYE, Options(target=targets.ANY)) == {}
    assert "e" in in_half(EYE, Options(target=targets.ANY))
    forced = Options(level=Level.UNSAFE_FORCE_ALL)
    assert "e" not in in_half(EYE, forced)
    assert {"m", "y"} <= in_half(EYE, forced)


GRID = """<ir_version: 9, opset_import: ["": 20]>
g (float[{points}] x, int64[{axes}] n) => (float[{grid}] y) {{ y = AffineGrid (x, n) }}"""
PLANE = {"axes": 4, "grid": "N,H,W,2"}
SPACE = {"axes": 5, "grid": "N,D,H,W,3"}


@pytest.mark.parametrize(
    ("asked", "stays"),
    [
        ({"points": "1,2,3"} | PLANE, True),
        ({"points": "N,2,3"} | PLANE, True),
        ({"points": "2,2,3"} | PLANE, False),
        ({"points": "1,3,4"} | SPACE, False),
    ],
)
def test_the_affine_grid_of_one_image_stays(asked, stays):
    """onnxruntime fails on a half one in the plane that has, or may have, a batch of one."""
    forced = Options(level=Level.UNSAFE_FORCE_ALL)
    assert ("y" not in in_half(GRID.format(**asked), forced)) == stays


@pytest.mark.parametrize("operator", ["RandomNormal", "RandomUniform"])
def test_what_draws_from_nothing_stays(operator):
    """The result loads on the CPU, where nothing could be cast around a half one."""
    before = model(f"""g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float z = {{0}}> {{
        h = MatMul (x, w)
        r = {operator} <shape = [4, 4]> ()
        n = Mul (r, z)
        y = Add (h, n)
    }}""")
    agree(before, rewritten(before, Options(level=Level.UNSAFE_FORCE_ALL)).model)
