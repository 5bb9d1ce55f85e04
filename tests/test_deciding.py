"""What bounds decide: what lists deny and bounds prove tame is freed, what is declared too large is held."""

import math

import numpy as np
import onnx
import pytest

from amp_rewrite import analyze, verify
from amp_rewrite.cli import rewrite_job
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.options import Options, Pins
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.evidence import Authority, Reason
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Level
from tests.commands import run
from tests.text import model


def between(nodes, inputs="float[4,4] x"):
    """A model in which nodes stand between two products: the first makes `a`, the second reads `b`."""
    return model(
        f"""g ({inputs}) => (float[4,4] y) <float[4,4] w, float[4,4] v> {{
            [first] a = MatMul (x, w)
            {nodes}
            [last] y = MatMul (b, v)
        }}"""
    )


def entry(proto, options=None, name="node"):
    """What holds of a node, and whether it is half."""
    analysis = analyze(proto, options)
    unit = next(unit for unit in analysis.graph.units if unit.node.name == name)
    return analysis.painting.entries[unit.index], analysis.painting.is_half(unit.index)


EXP = "k = Constant <value_float = 0.0> () c = Min (a, k) [node] b = Exp (c)"
DECAY = "s = Softplus (a) d = Neg (s) [node] b = Exp (d)"
SATURATED = "t = Tanh (a) k = Constant <value_float = 20.0> () c = Mul (t, k)"
CUBE = "t = Tanh (a) e = Constant <value_float = 3.0> () [node] b = Pow (t, e)"
SUM = """t = Tanh (a) e = Constant <value_ints = [-1]> () [node] s = ReduceSum (t, e) b = Mul (t, s)"""

FREED = {
    "what is at most 0": (EXP, 0.0, 0.0),
    "what decays": (DECAY, 0.0, 0.0),
    "a square of at most 20": (f"{SATURATED} [node] b = Mul (c, c)", 20.0, 250.0),
    "a cube of at most 1": (CUBE, 1.0, 62500 ** (1 / 3)),
    "a sum of 4 that are at most 1": (SUM, 4.0, 32752.0),
}


@pytest.mark.parametrize(("nodes", "number", "limit"), FREED.values(), ids=list(FREED))
def test_what_is_proven_tame_is_half(nodes, number, limit):
    """Without any range: the reason has the bound and what half bears, and the result is close enough."""
    proto = between(nodes)
    found, is_half = entry(proto)
    assert (found.kind, found.authority, is_half) == (Kind.INFER, Authority.PROOF, True)
    assert found.evidence.number == pytest.approx(number, rel=1e-4)
    assert found.evidence.limit == pytest.approx(limit)
    samples = [{"x": np.random.default_rng(0).standard_normal((4, 4), np.float32)}]
    assert verify(proto, rewrite(proto).model, samples).ok


HELD = {
    "an exponential of anything": "[node] b = Exp (a)",
    "a square of anything": "[node] b = Mul (a, a)",
    "a square of up to 300": (
        "t = Tanh (a) k = Constant <value_float = 300.0> () c = Mul (t, k) [node] d = Mul (c, c) b = Tanh (d)"
    ),
    "a square of 200 that is doubled": (
        "t = Tanh (a) k = Constant <value_float = 200.0> () c = Mul (t, k) [node] d = Mul (c, c) "
        "b = Add (d, d)"
    ),
    "a negative power": "t = Tanh (a) e = Constant <value_float = -2.0> () [node] b = Pow (t, e)",
    "a power that varies": "t = Tanh (a) [node] b = Pow (t, t)",
    "a sum of large numbers": (
        "t = Tanh (a) k = Constant <value_float = 9000.0> () c = Mul (t, k) "
        "e = Constant <value_ints = [-1]> () [node] s = ReduceSum (c, e) b = Mul (t, s)"
    ),
}


@pytest.mark.parametrize("nodes", HELD.values(), ids=list(HELD))
def test_what_is_not_stays_denied(nodes):
    """Without a proof the list counts."""
    found, is_half = entry(between(nodes))
    assert (found.kind, found.authority, is_half) == (Kind.DENY, Authority.LIST, False)


def test_a_declared_range_proves_more():
    """A square of what is multiplied by weights: with small inputs it is proven, with large ones not."""
    proto = between("[node] b = Mul (a, a)")
    assert entry(proto, Options(ranges={"x": (-1, 1)}))[1]
    assert not entry(proto, Options(ranges={"x": (-1000, 1000)}))[1]


def own_list(tmp_path):
    """A list of the user's that denies what the shipped one denies."""
    path = tmp_path / "own.yaml"
    path.write_text("name: own\nextends: default\ndeny:\n  Exp: my own reason\n")
    return path


ASKED = {
    "a pin": lambda _: Options(pins=Pins(keep_full="node")),
    "a list": lambda folder: Options(lists=own_list(folder)),
    "Grappler's list": lambda _: Options(lists="tensorflow"),
    "a level": lambda _: Options(level=Level.TREAT_INFER_AS_DENY),
    "bfloat16": lambda _: Options(half="bfloat16"),
    "no freeing": lambda _: Options(free=False),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_users_keep_their_authority(tmp_path, asked):
    """What the user says of a node or an operator counts more than a proof, and so do other lists."""
    assert not entry(between(EXP), asked(tmp_path))[1]


def test_nothing_is_bounded_where_it_decides_nothing():
    """A model of which no list denies anything for its range costs nothing."""
    assert analyze(between("[node] b = Relu (a)")).state.proven is None
    assert analyze(between(EXP)).state.proven is not None


MOVED = """[flip] t = Transpose (x) [squash] s = Sigmoid (x) [product] a = MatMul (t, w)
    [add] c = Add (a, s)"""


def test_what_is_declared_too_large_stays_float32():
    """With a factor of 2, what reads it and what it is moved to; what is computed of it may be smaller."""
    proto = model(f"g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {{ {MOVED} [last] y = MatMul (c, w) }}")
    for most, held in ((30_000, ()), (40_000, ("flip", "squash", "product")), (math.inf, ())):
        options = Options(ranges={"x": (-1, most)})
        analysis = analyze(proto, options)
        found = {
            analysis.graph.units[unit].node.name
            for unit, evidence in analysis.findings.items()
            if evidence.reason is Reason.DECLARED_OVERFLOW
        }
        assert found == set(held)
    assert FLOAT16.largest < 40_000 * 2


TINY = """t = Tanh (a) k = Constant <value_float = 3e-4> () c = Mul (t, k) [node] d = Mul (c, c)
    l = Constant <value_float = 30000.0> () b = Mul (d, l)"""


def test_what_went_back_is_not_freed_by_a_second_rewrite(tmp_path):
    """The list denies it again, though nothing runs then; a pin counts all the same."""
    proto = between(TINY.replace("Tanh", "Sin"))  # float32 before a square that is, and bounded again
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(0).standard_normal((4, 4), np.float32))
    given = ("--data", tmp_path / "in.npz")
    assert run(tmp_path / "m.onnx", "-o", tmp_path / "once.onnx", *given).exit_code == 0
    once = onnx.load(tmp_path / "once.onnx")
    assert entry(proto)[0].kind is Kind.INFER
    assert entry(once)[0].kind is Kind.DENY
    assert rewrite(once).report.earlier == 0
    assert entry(once, Options(pins=Pins(force_half="node")))[1]


def tuned_with(monkeypatch, path, *flags):
    """The options with which the main job tunes first."""
    asked = []
    monkeypatch.setattr(rewrite_job, "tune", lambda _, __, options, *___, **____: asked.append(options))
    run(path, *flags)
    return asked[0]


def test_what_went_back_is_not_freed_by_a_search(tmp_path, monkeypatch):
    """A search starts from what failed last: without what was freed, else with the options as they are."""
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(0).standard_normal((4, 4), np.float32))
    near = ("--tolerance", "error=1e-6", "--range", "x=-8:8", "--data", tmp_path / "in.npz")
    onnx.save(between(TINY), tmp_path / "m.onnx")
    options = tuned_with(monkeypatch, tmp_path / "m.onnx", *near)
    assert (options.free, options.ranges) == (False, {"x": (-8.0, 8.0)})
    onnx.save(between("[node] b = Relu (a)"), tmp_path / "m.onnx")
    assert tuned_with(monkeypatch, tmp_path / "m.onnx", *near).free
