"""Stored tensors, and which of them are constant."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.model import constants
from tests.text import model

WEIGHT = "{1.0, 2.0}"


def found(text):
    """The stored tensors by value name."""
    return {s.value.name: s for s in constants.find(ir.from_proto(model(text))).values()}


def test_initializers_and_constants_of_all_graphs():
    """Float32 tensors of the main graph, of branches and of Constant nodes of any form are found."""
    text = f"""g (bool c) => (float[2] y, double[1] z, int64[1] u)
    <float[2] w = {WEIGHT}, int64[1] i = {{1}}, double[1] d = {{1.0}}> {{
        a = Constant <value_float = 0.5> ()
        b = Constant <value_floats = [0.5, 2.0]> ()
        e = Constant <value = float[2] {{3, 4}}> ()
        f = Constant <value_ints = [1, 2]> ()
        h = Constant <value_int = 7> ()
        s = Constant <value_string = "text"> ()
        y = If (c) <
            then_branch = t () => (float[2] p) <float[2] v = {WEIGHT}> {{ p = Add (v, w) }},
            else_branch = o () => (float[2] q) {{ k = Constant <value_float = 1.5> () q = Add (e, k) }}
        >
        z = Identity (d)
        u = Identity (i)
    }}"""
    arrays = {name: held.tensor.numpy() for name, held in found(text).items()}
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "w": [1.0, 2.0],
        "a": 0.5,
        "b": [0.5, 2.0],
        "e": [3.0, 4.0],
        "v": [1.0, 2.0],
        "k": 1.5,
    }
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("version", "constant"), [(3, True), (4, False), (8, False)])
def test_initializers_that_are_inputs(version, constant):
    """Before IR 4 a weight is listed as an input and constant; from then on callers may override it."""
    text = f"""<ir_version: {version}, opset_import: ["" : 8]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {WEIGHT}> {{ y = Add (x, w) }}"""
    assert ("w" in found(text)) == constant


def test_where_it_is_stored():
    """A tensor of a Constant node has that node; one of an initializer has none."""
    text = f"""g (float[2] x) => (float[2] y) <float[2] w = {WEIGHT}> {{
        c = Constant <value_float = 0.5> ()
        a = Add (x, w)
        y = Add (a, c)
    }}"""
    held = found(text)
    assert held["w"].node is None
    assert held["c"].node is held["c"].value.producer()
    assert held["c"].tensor.dtype == ir.DataType.FLOAT


def test_a_reference_is_no_constant():
    """A Constant whose value is a parameter of its function has no known value."""
    node = ir.node("Constant", [])
    node.attributes["value"] = ir.RefAttr("value", "given", ir.AttributeType.TENSOR)
    assert constants.constant(node) is None
