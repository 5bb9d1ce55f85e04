"""Every way in which exporters spell an activation out of the value `a` as `z`: texts for onnx's parser."""

import itertools
import re

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
