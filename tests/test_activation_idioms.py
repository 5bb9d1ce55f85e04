"""Activations that are written out: one colour, in half where their data are."""

import itertools
import re

import numpy as np
import pytest

from amp_rewrite import analyze, rewrite, verify
from amp_rewrite.policy.options import Options
from tests import text
from tests.commands import every
from tests.cuda_sessions import cuda_placer, marks, worsened

ERF = {
    "divided": "d = Div (a, root) e = Erf (d)",
    "multiplied": "d = Mul (a, unroot) e = Erf (d)",
    "multiplied from the left": "d = Mul (unroot, a) e = Erf (d)",
}
CUBES = {
    "Pow": "c = Pow (a, three)",
    "products": "q = Mul (a, a) c = Mul (q, a)",
    "products from the right": "q = Mul (a, a) c = Mul (a, q)",
}
TANH = {
    **{
        f"{name}, {order}": f"{cube} k = {scale} s = {total} d = {whole} e = Tanh (d)"
        for name, cube in CUBES.items()
        for order, (scale, total, whole) in {
            "plain": ("Mul (c, small)", "Add (a, k)", "Mul (s, wide)"),
            "swapped": ("Mul (small, c)", "Add (k, a)", "Mul (wide, s)"),
        }.items()
    },
    "factored": (
        "n = Mul (a, small) q = Mul (a, n) k = Add (q, one) w = Mul (a, wide) d = Mul (w, k) e = Tanh (d)"
    ),
    "factored, swapped": (
        "n = Mul (small, a) q = Mul (n, a) k = Add (one, q) w = Mul (wide, a) d = Mul (k, w) e = Tanh (d)"
    ),
    "of a square": (
        "q = Mul (a, a) n = Mul (q, small) k = Add (n, one) w = Mul (a, wide) d = Mul (w, k) e = Tanh (d)"
    ),
}
TAILS = {
    "halved last": "g = Mul (a, o) z = Mul (g, half)",
    "halved last, swapped": "g = Mul (o, a) z = Mul (half, g)",
    "halved by two": "g = Mul (a, o) z = Div (g, two)",
    "data halved": "g = Mul (a, half) z = Mul (g, o)",
    "data halved, swapped": "g = Mul (half, a) z = Mul (o, g)",
    "gate halved": "g = Mul (o, half) z = Mul (a, g)",
    "gate halved, swapped": "g = Mul (half, o) z = Mul (g, a)",
}
ONES = {"after": "o = Add (e, one)", "before": "o = Add (one, e)"}
GELUS = {
    f"{kind}: {name}; one {place}; {tail}": f"{front} {ones} {end}"
    for kind, fronts in (("Erf", ERF), ("Tanh", TANH))
    for (name, front), (place, ones), (tail, end) in itertools.product(
        fronts.items(), ONES.items(), TAILS.items()
    )
}
GATES = {
    "SiLU": "e = Sigmoid (a) z = Mul (a, e)",
    "SiLU, swapped": "e = Sigmoid (a) z = Mul (e, a)",
    "Swish": "d = Mul (a, beta) e = Sigmoid (d) z = Mul (a, e)",
    "Swish, swapped": "d = Mul (beta, a) e = Sigmoid (d) z = Mul (e, a)",
    "QuickGelu": "d = Mul (a, quick) e = Sigmoid (d) z = Mul (a, e)",
    "QuickGelu, swapped": "d = Mul (quick, a) e = Sigmoid (d) z = Mul (e, a)",
    "SiLU of an exponential": "n = Neg (a) p = Exp (n) o = Add (p, one) z = Div (a, o)",
    "SiLU of an exponential, swapped": "n = Neg (a) p = Exp (n) o = Add (one, p) z = Div (a, o)",
    "Swish of an exponential": "n = Mul (a, minus) p = Exp (n) o = Add (p, one) z = Div (a, o)",
    "SiLU of an inverse": "n = Neg (a) p = Exp (n) o = Add (p, one) r = Div (one, o) z = Mul (a, r)",
    "SiLU of a reciprocal": "n = Neg (a) p = Exp (n) o = Add (p, one) r = Reciprocal (o) z = Mul (r, a)",
    "HardSwish": "e = HardSigmoid <alpha = 0.16666667, beta = 0.5> (a) z = Mul (a, e)",
    "HardSwish of Clip": "p = Add (a, three) c = Clip (p, zero, six) e = Div (c, six) z = Mul (a, e)",
    "HardSwish of Clip, divided last": (
        "p = Add (a, three) c = Clip (p, zero, six) e = Mul (a, c) z = Div (e, six)"
    ),
    "Mish": "s = Softplus (a) e = Tanh (s) z = Mul (a, e)",
    "Mish, swapped": "s = Softplus (a) e = Tanh (s) z = Mul (e, a)",
}
ACTIVATIONS = {**GELUS, **GATES}
NUMBERS = {
    "root": 1.4142135381698608,
    "unroot": 0.7071067690849304,
    "three": 3,
    "small": 0.044714998453855515,
    "wide": 0.7978845834732056,
    "one": 1,
    "half": 0.5,
    "two": 2,
    "beta": 1.5,
    "quick": 1.702,
    "zero": 0,
    "six": 6,
    "minus": -1.702,
}


def between_products(body, opset=17):
    """A model with that body between two products."""
    ir_version = 10 if opset > 18 else 8
    words = re.findall(r"\w+", body)
    stored = "".join(
        f", float {name} = {{{float(value)}}}" for name, value in NUMBERS.items() if name in words
    )
    head = f'<ir_version: {ir_version}, opset_import: ["": {opset}]>'
    return f"""{head} g (float[2, 4, 8] x) => (float[2, 4, 8] y) <float[8, 8] v, float[8, 8] u{stored}> {{
        a = MatMul (x, v)
        {body}
        y = MatMul (z, u)
    }}"""


OPSETS = range(11, 23)
IDIOMS = [name for name in ACTIVATIONS if "Clip" not in name]


def activation(name, opset=17):
    """An activation between two products."""
    return between_products(ACTIVATIONS[name], opset)


def colours(source, options=None):
    """Whether the nodes between the two products are half: a set of one, if they have one colour."""
    found = analyze(text.model(source) if isinstance(source, str) else source, options)
    inside = (unit for unit in found.graph.units if unit.node.op_type != "MatMul" and unit.defs)
    return {found.painting.is_half(unit.index) for unit in inside}


@pytest.mark.parametrize("opset", every(4, OPSETS))
def test_every_spelling_loads_and_is_close(opset):
    """Every twelfth Gelu at each opset, so that all of them come up, and all others at each."""
    names = [*list(GELUS)[opset - 11 :: 12], *GATES]
    sources = [activation(name, opset) for name in names]
    for source in sources:
        before = text.model(source)
        text.agree(before, rewrite(before).model)


@pytest.mark.parametrize("kind", ["Erf", "Tanh", "GATES"])
def test_every_spelling_is_half(kind):
    """All of it, though a Pow or an Exp alone would not be; every third Gelu."""
    names = {"GATES": [name for name in GATES if "Clip" not in name]}.get(kind)
    names = names or [name for name in GELUS if name.startswith(kind)][::3]
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
@pytest.mark.parametrize("name", [name for name in GATES if "exponential" in name])
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
    names = [name for name in ACTIVATIONS if "Pow" not in name][opset % 2 :: 2]
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
    names = [*list(GELUS)[::9], *(name for name in GATES if "Clip" not in name)]
    names = names[list(MOVED).index(kind) :: len(MOVED)]
    bodies = [ACTIVATIONS[name] for name in names]
    for body in bodies:
        nodes = re.findall(r"\w+ = \w+(?: <[^>]*>)? \([^)]*\)", body)
        for at, node in enumerate(nodes[:-1]):
            value = node.split()[0]
            between = MOVED[kind].format(a=value, b="moved", t="turned")
            after = " ".join(re.sub(rf"([(,] ?){value}\b", r"\1moved", each) for each in nodes[at + 1 :])
            source = between_products(f"{' '.join(nodes[: at + 1])} {between} {after}")
            source = source.replace("float[8, 8] v,", "float[8, 8] v, int64[3] shape = {2, 4, 8},")
            assert colours(source) == {True}, source
