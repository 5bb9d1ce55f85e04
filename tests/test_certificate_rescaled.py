"""Larger models, rescaled by hand, and faults in them; `certificate_rescaled.cases` has the rest."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate.certificate import Licence
from tests.certificate_pairs import changed, model, outputs


def test_weights_that_a_norm_went_into_are_rescaled():
    """The numbers that are computed anew have an exponent as well."""
    original = model(
        """g (float[2,4] x) => (float[2,4] y) <float[2,2,1,1] w = {3, 5, 7, 9}, float[2] s = {1, 2},
        float[2] v = {3, 4}, int64[4] image = {1, 2, 2, 2}, int64[2] shape = {2, 4}> {
        i = Reshape (x, image) c = Conv (i, w) n = BatchNormalization (c, s, v, v, v)
        l = ReduceL1 (n) q = Div (n, l) y = Reshape (q, shape) }"""
    )
    result = rewrite(original, Options(level="unsafe-force-all", check=False)).model
    for tensor in result.graph.initializer:
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype == np.float16:
            tensor.CopyFrom(numpy_helper.from_array(numbers / np.float16(4), tensor.name))
    found = certify(original, result)
    assert found.licences == {Licence.MERGED: 1, Licence.RESCALED: 2}, found


LARGER = {
    # the shapes of weights, those that are divided by 4, other stored values, and the nodes
    "a residual stream": (
        {"w": (4, 4), "a": (4,), "v": (4, 4), "g": (4,), "o": (4, 4), "b": (4,)},
        "wao",
        "float e = {0.01}, float two = {2}, float k = {1}",
        """m = MatMul (x, w) n = Add (m, a) r = Relu (n) f = MatMul (r, v) h = Add (f, n) p = Pow (h, two)
        s = ReduceMean <axes = [-1]> (p) d = Add (s, e) q = Sqrt (d) c = Div (h, q) l = Mul (c, g)
        i = MatMul (l, o) j = Add (i, h) t = LayerNormalization <epsilon = 0.02> (j, g, b)
        u = Mul (i, k) z = Tanh (u) y = Add (t, z)""",
    ),
    "convolutions": (
        {"w": (4, 2, 1, 1), "b": (4,), "v": (4, 4, 1, 1), "g": (4,), "o": (2, 4, 1, 1)},
        "wb",
        "int64[4] image = {1, 2, 2, 2}, int64[2] shape = {2, 4}, float k = {1}",
        """i = Reshape (x, image) a = Conv (i, w, b) r = Relu (a) c = Conv (r, v) d = Add (c, a)
        n = InstanceNormalization <epsilon = 0.02> (d, g, g) s = Sigmoid (n) p = Mul (d, s)
        u = Conv (p, o) q = Mul (u, k) y = Reshape (q, shape)""",
    ),
}


def larger(name):
    """The original and the result."""
    weights, smaller, stored, nodes = LARGER[name]
    text = f"g (float[2,4] x) => (float[2,4] y) <{stored}> {{ {nodes} }}"
    changes = {"{0.01}": "{0.000625}", "= 0.02": "= 0.00125", "k = {1}": "k = {4}"}
    original = model(text)
    for old, new in changes.items():
        text = text.replace(old, new)
    result = model(text)
    for weight, shape in weights.items():
        numbers = np.random.default_rng(5).standard_normal(shape, np.float32)
        original.graph.initializer.append(numpy_helper.from_array(numbers, weight))
        numbers = numbers / np.float32(4 if weight in smaller else 1)
        result.graph.initializer.append(numpy_helper.from_array(numbers, weight))
    return original, result


def faults(result):
    """Changes of a result that are a fault each, by what they are."""
    for at, tensor in enumerate(result.graph.initializer):
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype.kind == "f":
            bits = numbers.copy()
            bits.reshape(-1).view(f"u{numbers.itemsize}")[0] ^= 1
            for what, other in (("twice", numbers * 2), ("half of", numbers / 2), ("a bit of", bits)):
                wrong = numpy_helper.from_array(np.asarray(other, numbers.dtype), tensor.name)
                yield (
                    f"{what} {tensor.name}",
                    lambda it, at=at, wrong=wrong: it.graph.initializer[at].CopyFrom(wrong),
                )
    for at, node in enumerate(result.graph.node):
        for factor in (0.25, 2, 4, 16) if [each.name for each in node.attribute] == ["epsilon"] else ():
            epsilon = helper.make_attribute("epsilon", node.attribute[0].f * factor)
            yield (
                f"epsilon times {factor}",
                lambda it, at=at, epsilon=epsilon: it.graph.node[at].attribute[0].CopyFrom(epsilon),
            )
        if node.op_type == "Mul" and "k" in node.input[1]:
            plain = helper.make_node("Identity", node.input[:1], node.output)
            yield f"no {node.output[0]}", lambda it, at=at, plain=plain: it.graph.node[at].CopyFrom(plain)
            again = helper.make_node("Mul", ["once", node.input[1]], node.output)
            yield f"{node.output[0]} twice", lambda it, at=at, again=again: multiply(it.graph, at, again)


def multiply(graph, at, again):
    """Put a second Mul behind one."""
    graph.node[at].output[0] = "once"
    graph.node.insert(at + 1, again)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("name", LARGER)
def test_faults_in_rescaled_models_are_refused(name, kind):
    """Unless the output has the same bits."""
    original, result = larger(name)
    if kind != "float32":
        options = Options(half=kind, level="unsafe-force-all", check=False, certify=False)
        result = rewrite(result, options).model
    expected = outputs(result)
    assert certify(original, result).proved
    wrong = {what: changed(result, change) for what, change in faults(result)}
    assert len(wrong) > 15
    for what, mutant in wrong.items():
        assert not certify(original, mutant).proved or outputs(mutant) == expected, what
