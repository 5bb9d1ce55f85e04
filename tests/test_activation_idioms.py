"""Activations that are written out: one colour, in half where their data are."""

import re

import numpy as np
import pytest

from amp_rewrite import analyze, rewrite, verify
from amp_rewrite.policy.options import Options
from tests import activations, text
from tests.cuda_sessions import cuda_placer, marks, worsened
from tests.sampling import every

OPSETS = range(11, 23)
IDIOMS = [name for name in activations.ACTIVATIONS if "Clip" not in name]


def activation(name, opset=17):
    """An activation between two products."""
    return activations.between_products(activations.ACTIVATIONS[name], opset)


def colours(source, options=None):
    """Whether the nodes between the two products are half: a set of one, if they have one colour."""
    found = analyze(text.model(source) if isinstance(source, str) else source, options)
    inside = (unit for unit in found.graph.units if unit.node.op_type != "MatMul" and unit.defs)
    return {found.painting.is_half(unit.index) for unit in inside}


@pytest.mark.parametrize("opset", every(4, OPSETS))
def test_every_spelling_loads_and_is_close(opset):
    """Every twelfth Gelu at each opset, so that all of them come up, and all others at each."""
    names = [*list(activations.GELUS)[opset - 11 :: 12], *activations.GATES]
    sources = [activation(name, opset) for name in names]
    for source in sources:
        before = text.model(source)
        text.agree(before, rewrite(before).model)


@pytest.mark.parametrize("kind", ["Erf", "Tanh", "GATES"])
def test_every_spelling_is_half(kind):
    """All of it, though a Pow or an Exp alone would not be; every third Gelu."""
    names = {"GATES": [name for name in activations.GATES if "Clip" not in name]}.get(kind)
    names = names or [name for name in activations.GELUS if name.startswith(kind)][::3]
    for source in map(activation, names):
        assert colours(source) == {True}, source


def test_numbers_beyond_the_range_saturate():
    """A cube that overflows in half gives what it would give in float32."""
    source = """g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float three = {3}, float k = {0.0447},
        float w = {0.798}, float one = {1}, float half = {0.5}> {
        a = MatMul (x, v)
        c = Pow (a, three) s = Mul (c, k) t = Add (a, s) d = Mul (t, w) e = Tanh (d) o = Add (e, one)
        g = Mul (a, half) z = Mul (g, o)
        y = MatMul (z, v)
    }"""
    large = np.diag([100, -100, 100, -100]).astype(np.float32)
    before = text.model(source, {"v": large})
    assert {"c", "z"} <= text.in_half(source)
    expected, found = text.run(before)["y"], text.run(rewrite(before).model)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in activations.GATES if "exponential" in name])
def test_an_exponential_that_overflows_makes_a_zero(name, half):
    """What is lost of a large negative number times its sigmoid is less than half rounds beside it."""
    identity = {"v": np.eye(8, dtype=np.float32), "u": np.eye(8, dtype=np.float32)}
    before = text.model(activation(name, 22), identity)
    given = {"x": np.linspace(-30, 2, 64, dtype=np.float32).reshape(2, 4, 8)}
    verdict = verify(before, rewrite(before, Options(half=half)).model, given, device="cpu")
    assert verdict.ok
    assert verdict.outputs[0].metrics.max_abs < {"float16": 2e-3, "bfloat16": 2e-2}[half]


@pytest.mark.parametrize("name", ["SiLU", "QuickGelu", "Erf: divided; one after; halved last"])
def test_bfloat16_fuses_too(name):
    """What onnxruntime fuses in float32 alone is computed in that, behind and before a Cast."""
    is_half = colours(activation(name, 22), Options(half="bfloat16"))
    assert is_half == {name == "SiLU"}


@marks
@pytest.mark.parametrize("opset", [11, 13, 17, 18, 20, 22])
def test_cuda_fuses_what_it_fuses_in_float32(opset):
    """The results have a Cast more at each end, and no other node; every third spelling at each opset."""
    sources = [activation(name, opset) for name in IDIOMS[opset % 3 :: 3]]
    with cuda_placer() as place:
        for source in sources:
            before = text.model(source)
            original, result = place(before), place(rewrite(before).model)
            assert (result.refused, worsened(original, result)) == ("", []), source
            assert (result.nodes, result.fused) == (original.nodes + 2, original.fused), source


@marks
@pytest.mark.parametrize("opset", [13, 22])
def test_bfloat16_loads_on_cuda(opset):
    """Fused as in float32; onnxruntime takes a Cast before a Pow for a part of another pattern."""
    names = [name for name in activations.ACTIVATIONS if "Pow" not in name][opset % 2 :: 2]
    with cuda_placer() as place:
        for source in [activation(name, opset) for name in names]:
            before = text.model(source)
            original, result = place(before), place(rewrite(before, Options(half="bfloat16")).model)
            assert (result.refused, result.fused) == ("", original.fused), source


MOVED = {
    "Identity": "{b} = Identity ({a})",
    "Reshape": "{b} = Reshape ({a}, shape)",
    "Transpose": "{t} = Transpose <perm = [1, 0, 2]> ({a}) {b} = Transpose <perm = [1, 0, 2]> ({t})",
}


@pytest.mark.parametrize("kind", MOVED)
def test_what_moves_between_two_nodes_changes_nothing(kind):
    """Behind any node of an activation, of every ninth Gelu and all others; each kind in a third of them."""
    names = [*list(activations.GELUS)[::9], *(name for name in activations.GATES if "Clip" not in name)]
    names = names[list(MOVED).index(kind) :: len(MOVED)]
    bodies = [activations.ACTIVATIONS[name] for name in names]
    for body in bodies:
        nodes = re.findall(r"\w+ = \w+(?: <[^>]*>)? \([^)]*\)", body)
        for at, node in enumerate(nodes[:-1]):
            value = node.split()[0]
            between = MOVED[kind].format(a=value, b="moved", t="turned")
            after = " ".join(re.sub(rf"([(,] ?){value}\b", r"\1moved", each) for each in nodes[at + 1 :])
            source = activations.between_products(f"{' '.join(nodes[: at + 1])} {between} {after}")
            source = source.replace("float[8, 8] v,", "float[8, 8] v, int64[3] shape = {2, 4, 8},")
            assert colours(source) == {True}, source
