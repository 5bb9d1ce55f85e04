"""What bounds decide: what lists deny and bounds prove tame is freed, what is declared too large is held."""

import numpy as np
import onnx

from amp_rewrite import analyze, conversion
from amp_rewrite.options import Options, Pins
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.operator_lists import Kind
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


def test_nothing_is_bounded_where_it_decides_nothing():
    """A model of which no list denies anything for its range costs nothing."""
    assert analyze(between("[node] b = Relu (a)")).state.proven is None
    assert analyze(between(EXP)).state.proven is not None


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
    monkeypatch.setattr(conversion, "tune", lambda _, __, options, *___, **____: asked.append(options))
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
