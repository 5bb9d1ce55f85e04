"""What bounds decide: what lists deny and bounds prove in range is freed; what overflows is not."""

import numpy as np
import onnx
import pytest

from amp_rewrite import analyze, conversion
from amp_rewrite.options import Options, Pins
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.operator_lists import Kind
from tests.commands import run
from tests.text import model, values_in_half


def between(nodes):
    """A model in which nodes stand between two products: the first makes `a`, the second reads `b`."""
    return model(
        f"""g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4,4] v> {{
            [first] a = MatMul (x, w) {nodes} [last] y = MatMul (b, v) }}"""
    )


RELU = between("[node] b = Relu (a)")
TINY = """t = Tanh (a) k = Constant <value_float = 3e-4> () c = Mul (t, k) [node] d = Mul (c, c)
    l = Constant <value_float = 30000.0> () b = Mul (d, l)"""


def kind(proto):
    """What holds of the node."""
    analysis = analyze(proto)
    (unit,) = (unit.index for unit in analysis.graph.units if unit.node.name == "node")
    return analysis.painting.entries[unit].kind


def test_nothing_is_bounded_where_it_decides_nothing():
    """A model of which no list denies anything for its range costs nothing."""
    found = analyze(RELU), analyze(between("[node] b = Exp (a)"))
    assert [each.computed.proven is None for each in found] == [True, False]


@pytest.fixture
def flags(tmp_path):
    """Flags for the samples that a comparison reads."""
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(0).standard_normal((4, 4), np.float32))
    return "--data", tmp_path / "in.npz"


def test_what_went_back_is_not_freed_by_a_second_rewrite(tmp_path, flags):
    """The list denies it again, though nothing runs then; a pin counts all the same."""
    proto = between(TINY.replace("Tanh", "Sin"))  # float32 before a square that is, and bounded again
    onnx.save(proto, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", "-o", tmp_path / "once.onnx", *flags).exit_code == 0
    once = onnx.load(tmp_path / "once.onnx")
    assert (kind(proto), kind(once)) == (Kind.INFER, Kind.DENY)
    assert rewrite(once).report.earlier == 0
    analysis = analyze(once, Options(pins=Pins(force_half="node")))
    assert "d" in values_in_half(analysis)


def test_what_went_back_is_not_freed_by_a_search(tmp_path, monkeypatch, flags):
    """A search starts from what failed last: without what was freed, else with the options as they are."""
    asked = []
    monkeypatch.setattr(conversion, "tune", lambda _, __, options, *___, **____: asked.append(options))
    for proto, is_free in ((between(TINY), False), (RELU, True)):
        asked.clear()
        onnx.save(proto, tmp_path / "m.onnx")
        run(tmp_path / "m.onnx", "--tolerance", "error=1e-6", "--range", "x=-8:8", *flags)
        assert (asked[0].free, asked[0].ranges) == (is_free, {"x": (-8.0, 8.0)})
