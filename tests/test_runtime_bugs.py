"""What a valid half model must avoid because a runtime would fail on it."""

import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import analyze
from amp_rewrite.analysis import transposes
from amp_rewrite.policy import targets
from amp_rewrite.policy.options import Level, Options
from tests.text import agree, in_half, kept, model, rewritten


def text(perm, reader="MatMul (t, v)", shape="2,3,4"):
    """A product, its Transpose, and what reads that."""
    return f"""g (float[{shape}] x) => (float[A,B,C] y) <float[4,4] w, float[4,4] v> {{
        m = MatMul (x, w)
        t = Transpose <perm = {perm}> (m)
        y = {reader}
    }}"""


@pytest.mark.parametrize(
    ("perm", "stays"), [([1, 0, 2], True), ([0, 2, 1], False), ([2, 0, 1], False), ([0, 1, 2], False)]
)
def test_the_transpose_that_crashes_stays(perm, stays):
    """A Transpose that moves the first axis behind the second stays before a MatMul; others go."""
    before = text(perm, "MatMul (t, u)").replace("y =", "u = Transpose <perm = [0, 2, 1]> (t) y =")
    assert ("t" in kept(before)) == stays
    assert ("t" in in_half(before)) != stays
    assert {"m", "y"} <= in_half(before)


def test_matrices_may_be_transposed():
    """With two axes there is nothing to crash."""
    flat = text([1, 0], shape="4,4").replace("float[A,B,C] y", "float[A,B] y")
    assert {"m", "t", "y"} <= in_half(flat)
    agree(model(flat), rewritten(model(flat)).model)


@pytest.mark.parametrize("reader", ["Relu (t)", "Add (t, t)"])
def test_only_before_a_product(reader):
    """The same Transpose before anything else is half."""
    assert kept(text([1, 0, 2], reader)) == {}
    assert "t" in in_half(text([1, 0, 2], reader))


def test_the_second_operand_is_safe():
    """As the second operand of a MatMul the Transpose is half."""
    found = in_half(text([1, 0, 2], "MatMul (v, t)", "4,2,4"))
    assert {"m", "t", "y"} <= found


def test_the_result_loads():
    """The rewritten model makes a session, which is what would crash."""
    proto = model(text([1, 0, 2]))
    result = rewritten(proto)
    agree(proto, result.model)


BETWEEN = """g (float[{shape}] x) => (float[A,B,C] y) <float[4,4] w, float[{inner},4] v, float[4] e,
    float k = {{0.5}}, int64[1] from = {{0}}, int64[1] to = {{1}}, int64[3] same = {{3,2,4}},
    int64[2] flat = {{6,4}}> {{
    h = MatMul (x, w)
    m = Add (h, e)
    t = Transpose <perm = {perm}> (m)
    {between}
    y = MatMul (u, v)
}}"""
BESIDE = "s = Transpose <perm = [1, 0, 2]> (h) u = Concat <axis = -1> (t, s)"
FIRST, ROWS, BACK = [1, 0, 2], [0, 2, 1], [2, 0, 1]


@pytest.mark.parametrize(
    ("perm", "between", "sizes", "stays"),
    [
        (FIRST, "u = Mul (t, k)", {}, True),
        (FIRST, "u = Div (t, k)", {}, True),
        (FIRST, "u = Mul (t, e)", {}, False),
        (FIRST, "u = Tanh (t)", {}, False),
        (FIRST, "u = Identity (t)", {}, True),
        (FIRST, BESIDE, {"inner": 8}, True),
        (FIRST, "u = Slice (t, from, to)", {}, True),
        (FIRST, "u = Reshape (t, same)", {}, True),
        (FIRST, "r = Reshape (t, flat) u = Unsqueeze (r, from)", {}, False),
        (FIRST, "r = ReduceMax <axes = [0], keepdims = 0> (t) u = Unsqueeze (r, from)", {}, False),
        (FIRST, "u = Transpose <perm = [0, 2, 1]> (t)", {"inner": 2}, True),
        (BACK, "u = Transpose <perm = [2, 0, 1]> (t)", {"inner": 2}, True),
        (BACK, "u = Transpose <perm = [1, 2, 0]> (t)", {}, False),
        (ROWS, "u = Mul (t, k)", {"inner": 3}, False),
    ],
)
def test_a_transpose_that_meets_its_product_later_stays(perm, between, sizes, stays):
    """What onnxruntime moves it past, or takes away, makes no difference; two count as what they make."""
    before = BETWEEN.format(perm=perm, between=between, **{"shape": "2,3,4", "inner": 4} | sizes)
    assert ("t" in kept(before)) == stays
    assert ("t" in in_half(before)) != stays
    agree(model(before), rewritten(model(before)).model)


def test_axes_that_come_and_go_are_followed():
    """Queries, keys and values cut from one Transpose are in order before their product, and half."""
    cut = """g (float[2,3,1,5,4] x) => (float[A,B,C,D] y) <float[4,4] w, float[4,4] v, int64[1] a = {0}> {
        m = MatMul (x, w)
        t = Transpose <perm = [2, 0, 3, 1, 4]> (m)
        q = Split <axis = 0> (t)
        s = Squeeze (q, a)
        y = MatMul (s, v)
    }"""
    assert {"m", "t", "y"} <= in_half(cut)
    agree(model(cut), rewritten(model(cut)).model)


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


def lookups_in_a_chain(length, monkeypatch):
    """How often the uses of a value are looked up, in a chain of so many Transposes before a product."""
    value = chain = ir.Value(name="x", shape=ir.Shape([2, 3, 4]))
    nodes = []
    for _ in range(length):
        nodes.append(ir.node("Transpose", [chain], {"perm": [1, 0, 2]}))
        chain = nodes[-1].outputs[0]
    nodes.append(ir.node("MatMul", [chain, value]))
    looked_up = []
    uses = ir.Value.uses
    with monkeypatch.context() as patch:
        patch.setattr(ir.Value, "uses", lambda value: looked_up.append(value) or uses(value))
        assert len(transposes.crashing(nodes)) == length - 1  # the first of an even number is undone
    return len(looked_up)


def test_a_long_chain_of_transposes_is_traversed_a_few_times(monkeypatch):
    """And not once for each of them: an order of axes back and forth makes two states of every value."""
    assert lookups_in_a_chain(200, monkeypatch) < 10 * 200
    assert lookups_in_a_chain(400, monkeypatch) < 10 * 400
